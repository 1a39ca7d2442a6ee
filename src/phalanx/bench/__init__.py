"""Measuring Phalanx, beside other systems."""
