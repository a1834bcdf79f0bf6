#include "model/inference/runtime.h"

#include <dlfcn.h>

#include <cstdlib>
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

std::string PluginPath(const InferenceOptions& options) {
  if (!options.plugin.empty()) return options.plugin;
  const char* named = std::getenv("CAIRN_PREDICT_PLUGIN");
  if (named != nullptr && *named != '\0') return named;
  const std::string built = CAIRN_RUNTIME_BUILT;
  return built.empty() ? kPluginName : built;
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
