#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <cairn/status.h>

#include "model/inference/saved_model.h"
#include "serving/export_record.h"

namespace cairn::serving {

/// Makes the next numbered directory in `directory` (a path, made too, or a URL): its path and
/// number. Of several callers each gets another one.
Result<std::pair<std::string, std::int64_t>> MakeExportDirectory(const std::string& directory);
/// The export did not come about: the number is free for the next try. What another process may
/// have put there stays.
void GiveUpExportDirectory(const std::string& path);

/// An export whose files were compared with their checksums.
struct OpenExport {
  OpenSave save;
  ExportRecord record;
};

/// `path`: a numbered directory (also a URL), or the one above, whose newest complete export is
/// taken. InvalidArgument for an inference model that was not exported for serving.
Result<OpenExport> OpenNewestExport(const std::string& path);

}  // namespace cairn::serving
