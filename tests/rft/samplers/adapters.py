"""LoRA adapters as training writes them, without training. Run as a program so that tests hold no model:
``python adapters.py BASE FOLDER SCALE``; SCALE 0 leaves every B zero, as it is before the first step."""

import json
import sys
from pathlib import Path

import torch
from peft import PeftModel

from trainer.base_model import load_tokenizer, locate, stop_token_ids
from trainer.config import LoraSection, ModelSection
from trainer.data.render import Renderer
from trainer.model import add_adapter, load_base


def write_adapter(base_name: str, folder: Path, scale: float) -> None:
    section = ModelSection(base=base_name, quantization="none", dtype="float32")
    base = locate(base_name, None)
    model: PeftModel = add_adapter(
        load_base(base, section, torch.device("cpu"), print),
        LoraSection(r=4, target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]),
        seed=1,
    )
    torch.manual_seed(2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, scale) if scale else parameter.data.zero_()
    model.save_pretrained(str(folder))
    tokenizer = load_tokenizer(base)
    renderer = Renderer(tokenizer, stop_token_ids=stop_token_ids(base, tokenizer))
    (folder / "template.json").write_text(json.dumps(renderer.describe()))
    (folder / "chat_template.jinja").write_text(renderer.chat_template)


if __name__ == "__main__":
    write_adapter(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
