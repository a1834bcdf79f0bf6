#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <cairn/status.h>

#include "model/inference/saved_model.h"
#include "serving/export_record.h"

namespace cairn::serving {

/// Makes the next numbered directory in `directory` (which is made too): its path and number. Of
/// several callers each gets another one.
Result<std::pair<std::string, std::int64_t>> MakeExportDirectory(const std::string& directory);

/// An export whose files were compared with their checksums.
struct OpenExport {
  OpenSave save;
  ExportRecord record;
};

/// `path`: a numbered directory, or the one above, whose newest complete export is taken.
/// InvalidArgument for an inference model that was not exported for serving.
Result<OpenExport> OpenNewestExport(const std::string& path);

}  // namespace cairn::serving
