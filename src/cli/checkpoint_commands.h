#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "cli/console.h"

namespace cairn::cli {

// What `cairn checkpoint …` does once its command line is read. Each returns what is to be printed;
// the errors are for the user.

struct LsOptions {
  std::string directory;
  bool all = false;  // also what does not count
};
Result<Output> List(const LsOptions& options, Console* console);

struct ShowOptions {
  std::string directory;
  std::string which;
  bool all = false;  // every tensor and file, however many
};
Result<Output> Show(const ShowOptions& options, Console* console);

struct VerifyOptions {
  std::string directory;
  bool fast = false;
};
Result<Output> VerifyAll(const VerifyOptions& options, Console* console);

struct DiffOptions {
  std::vector<std::string> words;  // A B, or DIR STEP STEP
  bool all = false;
  bool exit_code = false;
};
Result<Output> DiffTwo(const DiffOptions& options, Console* console);

struct ExportOptions {
  std::vector<std::string> words;  // DIR [STEP|ID] OUT
};
Result<Output> Export(const ExportOptions& options, Console* console);

struct ImportOptions {
  std::string source;
  std::string directory;
  std::int64_t step = 0;
  bool no_files = false;
  bool takeover = false;
};
Result<Output> Import(const ImportOptions& options, Console* console);

struct CopyOptions {
  std::string source;
  std::string target;
  std::vector<std::string> which;
  bool all = false;
  bool adopt = false;
  bool takeover = false;
};
Result<Output> Copy(const CopyOptions& options, Console* console);

struct MergeOptions {
  std::string target;
  std::vector<std::string> parts;
  std::optional<std::int64_t> step;
  bool separate_files = false;
  bool takeover = false;
};
Result<Output> Merge(const MergeOptions& options, Console* console);

struct CompactOptions {
  std::string directory;
  std::string which;
  bool takeover = false;
};
Result<Output> Compact(const CompactOptions& options, Console* console);

struct RemoveOptions {
  std::string directory;
  std::vector<std::string> which;
  bool increments = false;  // also those that build on what is named
  bool yes = false;
  bool takeover = false;
};
Result<Output> Remove(const RemoveOptions& options, Console* console);

struct PinOptions {
  std::string directory;
  std::string which;
};
Result<Output> Pin(const PinOptions& options, bool pin, Console* console);

struct GcOptions {
  std::string directory;
  bool takeover = false;
};
Result<Output> Gc(const GcOptions& options, Console* console);

}  // namespace cairn::cli
