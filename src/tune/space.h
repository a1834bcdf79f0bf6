#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn::tune {

class Rng;

/// The member that makes an object the description of a domain.
inline constexpr std::string_view kDomain = "__domain__";

/// What the hyperparameters of an experiment may be: any nested objects and lists, in which
///
///   {"grid_search": [v, …]}                                   stands for each of the values in
///   turn,
///   {"__domain__": NAME, …}                                   for a value that is drawn:
///     uniform, loguniform            lower, upper             double in [lower, upper)
///     quniform, qloguniform          lower, upper, q          the nearest multiple of q
///     randint, lograndint            lower, upper             integer in [lower, upper)
///     qrandint, qlograndint          lower, upper, q          multiple of q in [lower, upper]
///     randn, qrandn                  mean, sd[, q]            normal; rounded to a multiple of q
///     choice                         categories               one of them; domains within are
///     drawn sample_from                    …                        stays as it is: a caller's
///     function
///                                                             fills it in (UnresolvedPaths)
///
/// Everything else stands for itself. A value type; const functions may be called concurrently.
class SearchSpace {
 public:
  /// InvalidArgument, naming the place, for a domain that is unknown or cannot be drawn from, and
  /// for a grid inside of a choice.
  static Result<SearchSpace> Parse(Value description);

  SearchSpace() = default;

  const Value& description() const { return description_; }
  /// The combinations of all grids: 1 without any. (At most 2^62; Parse refuses more.)
  std::uint64_t grid_size() const { return grid_size_; }
  /// Grids by path ("a/b", list elements by number), with their values, in path order.
  const std::vector<std::pair<std::string, Value::List>>& grids() const { return grids_; }
  /// Domains (without grids) by path, in path order: what an optimizer searches.
  const std::vector<std::pair<std::string, Value>>& domains() const { return domains_; }

  /// The config of combination `grid` (0 … grid_size-1; the first grid in path order runs fastest),
  /// with everything else drawn from the streams of (seed, sample).
  Value Draw(std::uint64_t seed, std::uint64_t sample, std::uint64_t grid) const;

  /// The same with some places set beforehand: `point` is a config or a part of one. Its grids that
  /// are set are not enumerated any more: grid_size of the result may be smaller. InvalidArgument
  /// for a place that the space does not have.
  Result<SearchSpace> Fix(const Value& point) const;

 private:
  Value description_ = Value::Object{};
  std::uint64_t grid_size_ = 1;
  std::vector<std::pair<std::string, Value::List>> grids_;
  std::vector<std::pair<std::string, Value>> domains_;
};

/// One value of a domain (an object with "__domain__", as checked by SearchSpace::Parse; or a list:
/// one of its elements).
Value DrawFrom(const Value& domain, Rng& rng);

/// The places of a config where a sample_from still stands, in path order.
std::vector<std::string> UnresolvedPaths(const Value& config);
/// Puts `value` at a path of UnresolvedPaths. NotFound when there is no such place.
Status Resolve(Value* config, std::string_view path, Value value);

/// Which configs of a space, in which order: searcher.h draws them.
struct VariantOptions {
  SearchSpace space;
  /// Each sample is all combinations of the grids once. -1: without end.
  std::int64_t num_samples = 1;
  std::uint64_t seed = 0;
  /// Configs, or parts of configs, that come first, each in the place of one sample.
  Value::List points_to_evaluate;
  /// The drawn values of a sample are the same for all its combinations.
  bool constant_grid_search = false;
};

}  // namespace cairn::tune
