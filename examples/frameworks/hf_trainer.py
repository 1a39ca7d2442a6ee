"""The Trainer of Hugging Face transformers, which keeps a process group that exists already.

phalanx run -n 2 examples/frameworks/hf_trainer.py
torchrun --nproc-per-node 2 examples/frameworks/hf_trainer.py gloo
"""

import hashlib
import sys
import tempfile

import torch
from torch import distributed
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import phalanx.torch  # noqa: F401 - registers the backend

distributed.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "phalanx")  # before TrainingArguments

set_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
texts = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(0, 64, (80, 16))]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=4,
        num_train_epochs=2,
        logging_steps=1,
        learning_rate=0.01,
        report_to="none",
        save_strategy="no",
    )
    torch.set_num_threads(1)  # Accelerate may have chosen more, which would share the cores with the other ranks
    trainer = Trainer(model=model, args=arguments, train_dataset=texts)
    trainer.train()

losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
weights = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()[:12]
print(f"rank {arguments.process_index} over {distributed.get_backend()}: losses {losses}, weights {weights}")
distributed.destroy_process_group()
