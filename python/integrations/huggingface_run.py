"""A small Hugging Face training that can kill itself; for test_huggingface.py."""

import os
import signal
import warnings

import torch
import transformers

from cairn.integrations.huggingface import CairnCallback, latest

STEPS = 18  # 3 epochs of 6


class Killer(transformers.TrainerCallback):
    def __init__(self, step):
        self._step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


class Texts(torch.utils.data.Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(2)
        self._tokens = torch.randint(0, 40, (24, 8), generator=generator)

    def __len__(self):
        return len(self._tokens)

    def __getitem__(self, index):
        return {"input_ids": self._tokens[index], "labels": self._tokens[index]}


def model():
    """Tied embeddings and dropout, random weights."""
    torch.manual_seed(4)
    config = transformers.GPT2Config(
        vocab_size=40,
        n_positions=8,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def trainer(output, callbacks, **arguments):
    return transformers.Trainer(
        model=model(),
        args=transformers.TrainingArguments(
            output_dir=str(output),
            num_train_epochs=3,
            per_device_train_batch_size=4,
            learning_rate=0.01,
            seed=7,
            report_to=[],
            disable_tqdm=True,
            logging_steps=5,
            use_cpu=True,
            **{"save_strategy": "no", **arguments},
        ),
        train_dataset=Texts(),
        callbacks=callbacks,
    )


def train(directory, out, kill_at):
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    callbacks = [CairnCallback(directory, save_steps=4)]
    if kill_at is not None:
        callbacks.append(Killer(kill_at))
    run = trainer(f"{out}.output", callbacks)
    run.train(resume_from_checkpoint=latest(directory))
    assert run.state.global_step == STEPS
    torch.save(run.model.state_dict(), out)
