#pragma once

#include <memory>

#include <cairn/trainer.h>

#include "checkpoint/environment.h"

namespace cairn {

/// Trainer::Open over a given store, clock and id source.
Result<std::unique_ptr<Trainer>> OpenTrainer(TrainerOptions options, Environment env);

}  // namespace cairn
