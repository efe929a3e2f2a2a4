"""The peer of recovery.py: what people put under ``torchrun --max-restarts``. Argument: a JSON file of settings.

A plain QLoRA script on TRL that resumes from its newest checkpoint. The files ``progress`` (8 bytes), ``pid`` and
``resumed`` tell its optimiser step, its process and the step that it resumed from.
"""

import json
import os
import struct
import sys
from pathlib import Path

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

settings = json.loads(Path(sys.argv[1]).read_text())
progress = os.open(settings["progress"], os.O_RDWR | os.O_CREAT)
Path(settings["pid"]).write_text(str(os.getpid()))


class Progress(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        os.pwrite(progress, struct.pack("<Q", state.global_step), 0)


model = AutoModelForCausalLM.from_pretrained(
    settings["base"],
    dtype=torch.float32,
    quantization_config=BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    ),
    device_map={"": "cpu"},
)
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir=settings["output"],
        max_steps=settings["max_steps"],
        save_steps=settings["save_steps"],
        save_total_limit=3,
        max_length=settings["max_length"],
        per_device_train_batch_size=settings["micro_batch"],
        gradient_accumulation_steps=settings["accumulation"],
        gradient_checkpointing=False,
        learning_rate=settings["learning_rate"],
        logging_steps=1,
        report_to="none",
        bf16=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        seed=settings["seed"],
    ),
    train_dataset=load_dataset("json", data_files=settings["rows"], split="train"),
    processing_class=AutoTokenizer.from_pretrained(settings["base"]),
    peft_config=LoraConfig(
        r=settings["rank"], lora_alpha=2 * settings["rank"], target_modules="all-linear", task_type="CAUSAL_LM"
    ),
    callbacks=[Progress()],
)
newest = get_last_checkpoint(settings["output"]) if Path(settings["output"]).is_dir() else None
Path(settings["resumed"]).write_text(newest.rpartition("-")[2] if newest else "0")
trainer.train(resume_from_checkpoint=newest)
