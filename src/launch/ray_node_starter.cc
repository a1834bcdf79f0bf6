#include <utility>

#include "format/json.h"
#include "launch/ray_nodes.h"

namespace cairn {
namespace {

/// Which Python has Ray is best known by the process that runs it: Ray's supervisor of the job, the
/// parent of the shim that starts this. Its title says nothing, but its libraries do. The variables
/// of the launch are not for that Python (-E).
constexpr char kFindPython[] = R"sh(
supervisor=$(cut -d' ' -f4 "/proc/$PPID/stat")
python=$(readlink "/proc/$supervisor/exe")
site=$(sed -n 's:^[^/]*\(/.*\)/ray/_raylet\.so$:\1:p' "/proc/$supervisor/maps" | head -n 1)
if [ -z "$site" ]; then
  echo "@failed the job was not started by a process of Ray: nodes=1 needs none"
  exit 1
fi
exec "$python" -E -c "import sys
sys.path.insert(0, sys.argv.pop(1))
$0" "$site" "$@"
)sh";

}  // namespace

std::vector<std::string> RayNodeStarter(const RayResources& resources) {
  Value::Object bundle;
  if (resources.num_cpus > 0) bundle["CPU"] = resources.num_cpus;
  if (resources.num_gpus > 0) bundle["GPU"] = resources.num_gpus;
  if (resources.memory > 0) bundle["memory"] = resources.memory;
  for (const auto& [name, amount] : resources.custom) bundle[name] = amount;
  return {"/bin/sh", "-c", kFindPython, kRayNodesProgram, EncodeJson(Value(std::move(bundle)))};
}

}  // namespace cairn
