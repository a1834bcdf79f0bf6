#pragma once

#include <string>

#include <cairn/status.h>

#include "master/api.h"

namespace cairn::master {

/// The master's figures in Prometheus' text format.
Result<std::string> PrometheusText(const ApiParts& parts);

}  // namespace cairn::master
