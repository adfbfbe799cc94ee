"""vLLM's server with its V2 model runner, the one that GPUs use by default, on a CPU: Triton interprets its kernels.

vLLM gives Triton up unless that has a back end for the CPU, which no package brings; the interpreter needs none. The
processes that it starts read this file again.
"""

import os
from types import SimpleNamespace

os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}

import triton.backends  # reads what is set above

triton.backends.backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))

if __name__ == "__main__":
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
