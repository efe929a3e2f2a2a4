"""A plain transformers training of a tiny random model on bytes of Python's own source: see command-example.yaml."""

from __future__ import annotations

import argparse
import ast
import time
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from trainer.callback import SupervisedCallback


class Slowly(TrainerCallback):
    """Waits at the end of each step, so that there is time to watch it, or to kill it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_step_end(self, *arguments: Any, **kwargs: Any) -> None:
        time.sleep(self.seconds)


def rows(length: int) -> list[dict[str, list[int]]]:
    data = Path(ast.__file__).read_bytes()
    pieces = [list(data[at : at + length]) for at in range(0, 200 * length, length)]
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-steps", type=int, default=5)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--resume")
    options = parser.parse_args()

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=options.layers,
            num_attention_heads=2, num_key_value_heads=2,
        )
    )  # fmt: skip
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=options.output,
            per_device_train_batch_size=options.micro_batch,
            gradient_accumulation_steps=options.accumulation,
            max_steps=options.steps,
            save_steps=options.save_steps,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=rows(options.max_length),
        callbacks=[Slowly(options.step_seconds), SupervisedCallback()],
    )
    trainer.train(resume_from_checkpoint=options.resume)
    trainer.save_model(options.output)


if __name__ == "__main__":
    main()
