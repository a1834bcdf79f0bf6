#include "tests/crash/torture.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include <cairn/value.h>

#include "format/json.h"

namespace cairn::crash {

Torture::Torture(std::string suite, int test_rounds)
    : suite_(std::move(suite)), test_rounds_(test_rounds) {
  Load();
}

bool Torture::Asked() { return std::getenv("CAIRN_TORTURE_SECONDS") != nullptr; }

void Torture::Load() {
  const char* path = std::getenv("CAIRN_TORTURE_STATE");
  if (path == nullptr) return;
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto value = DecodeJson(text);
  if (!value.ok()) return;  // the first run
  const Value::Object* object = value->if_object();
  if (object == nullptr) return;
  for (const auto& [key, count] : *object) {
    before_[key] = static_cast<std::uint64_t>(count.AsInt());
  }
  if (const auto seed = before_.find(suite_ + " seeds"); seed != before_.end()) {
    next_seed_ = seed->second + 1;
  }
}

void Torture::Save() const {
  const char* path = std::getenv("CAIRN_TORTURE_STATE");
  if (path == nullptr) return;
  std::map<std::string, std::uint64_t> all = before_;
  for (const auto& [what, count] : counts_) all[suite_ + " " + what] += count;
  all[suite_ + " seeds"] = next_seed_ - 1;
  Value::Object object;
  for (const auto& [what, count] : all) object[what] = static_cast<std::int64_t>(count);
  std::ofstream(path) << EncodeJson(object) << "\n";
}

void Torture::Run(const std::function<bool(std::uint64_t seed)>& round) {
  const char* seconds = std::getenv("CAIRN_TORTURE_SECONDS");
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::seconds(seconds == nullptr ? 0 : std::atol(seconds));
  std::uint64_t rounds = 0;
  for (bool more = true; more; ++rounds) {
    if (seconds == nullptr ? rounds >= static_cast<std::uint64_t>(test_rounds_)
                           : std::chrono::steady_clock::now() >= deadline) {
      break;
    }
    more = round(next_seed_++);
  }
  Save();
  std::printf("%s: %zu rounds", suite_.c_str(), static_cast<std::size_t>(rounds));
  for (const auto& [what, count] : counts_) {
    std::printf(", %zu %s", static_cast<std::size_t>(count), what.c_str());
  }
  std::printf("\n");
}

}  // namespace cairn::crash
