"""What makes a CPU run repeat bit for bit from one process to the next."""

from __future__ import annotations

import torch

_VECTOR_FUNCTIONS = (
    torch.acos,
    torch.asin,
    torch.atan,
    torch.cos,
    torch.cosh,
    torch.erf,
    torch.erfc,
    torch.erfinv,
    torch.exp,
    torch.exp2,
    torch.expm1,
    torch.lgamma,
    torch.log,
    torch.log10,
    torch.log1p,
    torch.log2,
    torch.rsqrt,
    torch.sigmoid,
    torch.sin,
    torch.sinh,
    torch.sqrt,
    torch.tan,
    torch.tanh,
)


def settle_vector_maths() -> None:
    """Call each vectorised elementary function once, from one thread. Call it before the first parallel operation.

    MKL's vector maths finds out which processor it runs on in its first call. When two threads make
    that call at once, one of them can compute it with another variant, and the first large ``exp`` of
    about one process in fifty differs in the last bit: that run is no longer the one it would have been.
    """
    for dtype in (torch.float32, torch.float64):
        one_thread_is_enough = torch.full((8,), 0.5, dtype=dtype)
        for function in _VECTOR_FUNCTIONS:
            function(one_thread_is_enough)
