#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn::tune {

/// How PBT finds hyperparameters near those of a good trial.
struct ExploreOptions {
  double resample_probability = 0.25;
  std::vector<double> perturbation_factors = {1.2, 0.8};
};

/// InvalidArgument, naming the place, for mutations that are neither lists (not empty), domains nor
/// objects of these.
Status ValidateMutations(const Value& mutations);

/// `config` with what `mutations` names changed: with resample_probability drawn anew, otherwise a
/// neighbour (in a list) or a multiple by one of the factors (integers stay integers, towards
/// zero). What is no number is drawn anew. Streams are named by seed, number and place.
Value Explore(const Value& config, const Value& mutations, const ExploreOptions& options,
              std::uint64_t seed, std::uint64_t number, const std::string& name);

/// The part of a config that `mutations` leaves open is drawn: for a population whose
/// hyperparameters were not given by a search space.
Value FillIn(const Value& config, const Value& mutations, std::uint64_t seed, std::uint64_t number,
             const std::string& name);

}  // namespace cairn::tune
