"""Adapters for the libraries people already train with. Each needs its own:

- :mod:`cairn.integrations.lightning`: CairnCheckpointIO, CairnCallback
- :mod:`cairn.integrations.huggingface`: CairnCallback, latest
- :mod:`cairn.integrations.dcp`: CairnWriter, CairnReader for torch.distributed.checkpoint
- :mod:`cairn.integrations.mlflow`, :mod:`cairn.integrations.wandb`: log what each save cost
"""
