// The same with the component predict: its own library, found only by those who ask for it.

#include <cstdio>

#include <cairn/inference.h>
#include <cairn/io.h>
#include <cairn/scope.h>

int main() {
  cairn::Scope scope;
  if (!scope.Parameter("w", cairn::DType::kF32, {2}).ok() || !cairn::SaveParams("w", scope).ok()) {
    std::fprintf(stderr, "the variables cannot be saved\n");
    return 1;
  }
  const auto saved = cairn::SaveInferenceModel(
      {.directory = "model", .model = "no model", .feed_names = {"x"}, .target_names = {"y"}});
  if (!saved.status().Is(cairn::Code::kCorruption)) {
    std::fprintf(stderr, "unexpected: %s\n", saved.status().ToString().c_str());
    return 1;
  }
  std::puts("ok");
  return 0;
}
