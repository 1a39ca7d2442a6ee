"""No test asserts a time, so hypothesis does not either: on a busy machine any example may take long."""

from hypothesis import settings

settings.register_profile("phalanx", parent=settings(), deadline=None)
settings.load_profile("phalanx")
