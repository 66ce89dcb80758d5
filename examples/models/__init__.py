"""The example models: single-device code that knows nothing of clusters, with one `make_train_step` contract.

`MODELS` names the modules. Each has `PRESETS` (name to config), `BATCH` (a sensible global batch for each preset),
`make_train_step(config)`, `example_batch(config, batch_size)` and `abstract_inputs(config, batch_size)`.
"""

from __future__ import annotations

MODELS: tuple[str, ...] = (
    "gpt",
    "llama",
    "moe",
    "sparse_llama",
    "bert",
    "t5",
    "vit",
    "clip",
    "convnet",
    "wide_resnet",
    "unet",
    "dlrm",
    "lstm",
    "mlp",
)
