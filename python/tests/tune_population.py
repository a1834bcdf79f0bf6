"""Trials that live in numbers alone, driven by a SearchPolicy as the tuner drives it."""

import random


class Population:
    """Runs the trials of a policy. `events` is what the tuner would have on record: replay() makes the
    calls again on another policy."""

    def __init__(self, policy, score, *, places=2, iterations=12, seed=0):
        self.policy = policy
        self.score = score
        self.places = places
        self.iterations = iterations
        self.random = random.Random(seed)
        self.events = []
        self.trials = {}
        self.pending, self.paused, self.running = [], [], []
        self.suggests = True

    def _fill(self):
        while len(self.running) < self.places:
            while self.suggests and len(self.pending) < max(1, self.policy.pending_ahead):
                name = f"trial_{len(self.trials):05d}"
                config = self.policy.suggest(name)
                if not isinstance(config, dict):
                    self.suggests = config is not None
                    break
                self.events.append(("suggest", name, config))
                self.trials[name] = {
                    "config": config,
                    "iteration": 0,
                    "results": [],
                    "ended": False,
                }
                self.pending.append(name)
            more = self.suggests or bool(self.running)
            asked = (list(self.pending), list(self.paused), more)
            choice = self.policy.choose(*asked)
            if choice is None:
                return
            self.events.append(("choose", *asked, choice))
            name = choice["trial"]
            for waiting in (self.pending, self.paused):
                if name in waiting:
                    waiting.remove(name)
            if choice["kind"] == "stop":
                self._end(name)
                continue
            if choice.get("donor"):
                self.trials[name]["config"] = choice["config"]
                self.trials[name]["iteration"] = self.trials[choice["donor"]]["iteration"]
            self.running.append(name)

    def _end(self, name):
        trial = self.trials[name]
        trial["ended"] = True
        last = trial["results"][-1] if trial["results"] else None
        self.events.append(("end", name, last))
        self.policy.on_end(name, last, False)

    def step(self):
        """One report; False when all is done."""
        self._fill()
        if not self.running:
            return False
        name = self.random.choice(self.running)
        trial = self.trials[name]
        trial["iteration"] += 1
        result = {"training_iteration": trial["iteration"], **self.score(name, trial)}
        trial["results"].append(result)
        decision = self.policy.on_result(name, result)
        self.events.append(("result", name, result, decision))
        action = decision[0] if decision else "continue"
        if action == "pause":
            self.running.remove(name)
            self.paused.append(name)
        elif action == "stop" or trial["iteration"] >= self.iterations:
            self.running.remove(name)
            self._end(name)
        return not self.policy.stop_all()

    def run(self):
        while self.step():
            pass
        return self

    def restart(self, policy):
        """The tuner was killed: a new policy gets the same calls, and must give the same answers."""
        for kind, *body in self.events:
            if kind == "suggest":
                policy.on_trial_add(*body)
            elif kind == "choose":
                *asked, choice = body
                assert policy.choose(*asked) == choice
            elif kind == "result":
                name, result, decision = body
                assert policy.on_result(name, result) == decision
            else:
                policy.on_end(*body, False)
        self.policy = policy
