"""Asks torch and bitsandbytes what they were built for: a program of its own, since the supervisor imports neither.

Prints one JSON object; what could not be found out is left out, ``*_error`` says why.
"""

import importlib.metadata
import json
import os
import sys


def main() -> None:
    found = {}
    for name in ("torch", "transformers", "trl", "peft", "bitsandbytes"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "torch" in found:
        try:
            import torch

            found["cuda_build"] = torch.version.cuda
            found["hip_build"] = torch.version.hip
            found["cuda_works"] = torch.cuda.is_available()
            if found["cuda_works"]:
                found["capability"] = list(torch.cuda.get_device_capability(0))
                found["architectures"] = torch.cuda.get_arch_list()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the user has to hear
            found["torch_error"] = f"{type(error).__name__}: {error}"
    if "bitsandbytes" in found and "torch_error" not in found:
        try:
            from bitsandbytes import cextension

            found["bnb_library"] = type(cextension.lib).__name__
            found["bnb_cuda"] = bool(getattr(type(cextension.lib), "compiled_with_cuda", False))
        except Exception as error:  # noqa: BLE001
            found["bnb_error"] = f"{type(error).__name__}: {error}"
    os.write(int(sys.argv[1]), json.dumps(found).encode())


main()
