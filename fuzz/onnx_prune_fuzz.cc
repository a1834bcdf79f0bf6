// A model, whatever its bytes, is refused or cut down to a graph that can be parsed again. The
// first byte chooses feed and target among a few names.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "fuzz/require.h"
#include "model/inference/onnx_graph.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cairn;  // NOLINT
  if (size < 1) return 0;
  static const std::string kTargets[] = {"probability", "loss", "y", "logit"};
  static const std::string kFeeds[] = {"x", "h4", "label", "h1"};
  auto graph = OnnxGraph::Parse(std::as_bytes(std::span(data + 1, size - 1)));
  if (!graph.ok()) return 0;
  const std::string& feed = kFeeds[data[0] & 3];
  const std::string& target = kTargets[(data[0] >> 2) & 3];
  if (!(*graph)->Prune({feed}, {target}).ok()) return 0;
  const auto bytes = (*graph)->Serialize("params.safetensors", {});
  Require(bytes.ok(), "a graph that was cut is serialized");
  auto again = OnnxGraph::Parse(std::as_bytes(std::span(*bytes)));
  Require(again.ok(), "and parsed again");
  Require((*again)->Prune({feed}, {target}).ok(), "and cut again");
  Require((*again)->nodes() == (*graph)->nodes(), "with nothing left to cut");
  return 0;
}
