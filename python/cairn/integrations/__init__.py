"""Adapters for the libraries people already train with. Each imports its library when it is imported:

- :mod:`cairn.integrations.lightning`: CairnCheckpointIO, CairnCallback
- :mod:`cairn.integrations.huggingface`: CairnCallback, latest
- :mod:`cairn.integrations.dcp`: CairnWriter, CairnReader for torch.distributed.checkpoint
- :mod:`cairn.integrations.mlflow`, :mod:`cairn.integrations.wandb`: log what each save cost
"""
