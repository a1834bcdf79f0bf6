"""A small Hugging Face training that can kill itself; for test_huggingface.py.

As a program, a process of torchrun: huggingface_run.py DIRECTORY OUT [STEP RANK], where the death of that
rank at that step ends all.
"""

import os
import signal
import sys
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


class KillerOfARank(transformers.TrainerCallback):
    """One rank of several dies at a step, when the save before it is durable."""

    def __init__(self, step, rank, saver):
        self._step, self._rank, self._saver = step, rank, saver

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step != self._step:
            return
        if self._saver._manager is not None:
            self._saver._manager.wait()
        torch.distributed.barrier()
        if args.process_index == self._rank:
            os.kill(os.getpid(), signal.SIGKILL)


class Starts(transformers.TrainerCallback):
    """Writes down after which step each start of the training went on."""

    def __init__(self, path):
        self._path = path

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            with open(self._path, "a") as stream:
                stream.write(f"{state.global_step}\n")


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
            learning_rate=0.01,
            seed=7,
            report_to=[],
            disable_tqdm=True,
            logging_steps=5,
            use_cpu=True,
            **{"save_strategy": "no", "per_device_train_batch_size": 4, **arguments},
        ),
        train_dataset=Texts(),
        callbacks=callbacks,
    )


def quiet():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)


def train(directory, out, kill_at):
    quiet()
    callbacks = [CairnCallback(directory, save_steps=4)]
    if kill_at is not None:
        callbacks.append(Killer(kill_at))
    run = trainer(f"{out}.output", callbacks)
    run.train(resume_from_checkpoint=latest(directory))
    assert run.state.global_step == STEPS
    torch.save(run.model.state_dict(), out)


def train_together(directory, out, *kill):
    """One of the two processes that torchrun starts."""
    quiet()
    saver = CairnCallback(directory, save_steps=4)
    callbacks = [saver, Starts(f"{out}.starts")]
    if kill:
        callbacks.append(KillerOfARank(*map(int, kill), saver))
    run = trainer(f"{out}.output", callbacks, per_device_train_batch_size=2)
    assert torch.distributed.get_backend() == "gloo" and run.args.world_size == 2
    torch.rand(run.args.process_index)  # dropout of its own in each, and one order of the data
    run.train(resume_from_checkpoint=latest(directory))
    assert run.state.global_step == STEPS
    assert isinstance(run.model_wrapped, torch.nn.parallel.DistributedDataParallel)
    if run.args.process_index == 0:
        torch.save(run.model.state_dict(), out)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    train_together(*sys.argv[1:])
