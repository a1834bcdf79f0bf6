#include "model/inference/runtime.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <vector>

#include "base/status_macros.h"

// Where the build put the plugin; empty in an installation.
#ifndef CAIRN_RUNTIME_BUILT
#define CAIRN_RUNTIME_BUILT ""
#endif

namespace cairn {
namespace {

constexpr const char* kPluginName = "libcairn_openvino.so";

/// The plugin's entry. It is never unloaded: threads of the runtime may outlive every model.
Result<OpenRuntimeFn> LoadPlugin(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, OpenRuntimeFn> loaded;
  const std::lock_guard lock(mutex);
  if (const auto it = loaded.find(path); it != loaded.end()) return it->second;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return UnavailableError(std::string("the runtime for inference cannot be loaded: ") +
                            (why == nullptr ? "unknown" : why) + ". It is " + kPluginName +
                            ", which needs OpenVINO: pip install 'cairn[predict]', or for C++ have "
                            "OpenVINO's libraries in LD_LIBRARY_PATH and name the plugin in "
                            "CAIRN_PREDICT_PLUGIN");
  }
  void* symbol = dlsym(handle, kRuntimeSymbol);
  if (symbol == nullptr) {
    return UnavailableError("\"" + path + "\" is no plugin of this version of Cairn");
  }
  const auto open = reinterpret_cast<OpenRuntimeFn>(symbol);
  loaded.emplace(path, open);
  return open;
}

/// Where installations have it, seen from the program: beside it, in the prefix's lib/cairn, or in
/// the package that pip installed with it. "": nowhere.
std::string PluginNearProgram() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path bin = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (error) return "";
  std::vector<fs::path> places = {bin, bin / "../lib/cairn"};
  // lib/<architecture>/cairn, lib/python3.11/site-packages/cairn
  for (const auto& entry : fs::directory_iterator(bin / "../lib", error)) {
    places.push_back(entry.path() / "cairn");
    places.push_back(entry.path() / "site-packages/cairn");
  }
  for (const fs::path& place : places) {
    if (fs::is_regular_file(place / kPluginName, error)) return (place / kPluginName).string();
  }
  return "";
}

std::string PluginPath(const InferenceOptions& options) {
  if (!options.plugin.empty()) return options.plugin;
  const char* named = std::getenv("CAIRN_PREDICT_PLUGIN");
  if (named != nullptr && *named != '\0') return named;
  const std::string built = CAIRN_RUNTIME_BUILT;
  if (!built.empty()) return built;
  const std::string near = PluginNearProgram();
  return near.empty() ? kPluginName : near;
}

}  // namespace

Result<std::unique_ptr<Runtime>> OpenRuntime(const std::string& model_path,
                                             const InferenceOptions& options) {
  ASSIGN_OR_RETURN(const OpenRuntimeFn open, LoadPlugin(PluginPath(options)));
  std::unique_ptr<Runtime> runtime;
  std::string error;
  if (!open(model_path, options, &runtime, &error)) {
    return FailedPreconditionError("OpenVINO cannot run the model: " + error);
  }
  return runtime;
}

}  // namespace cairn
