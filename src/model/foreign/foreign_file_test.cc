#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <cairn/io.h>

#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

using std::string_literals::operator""s;
using ::testing::HasSubstr;

const std::string kGolden = "tests/compat/foreign/";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Name → "dtype shape bytes", which compares and prints well.
std::map<std::string, std::string> Describe(const std::vector<OwnedTensor>& tensors) {
  std::map<std::string, std::string> out;
  for (const OwnedTensor& tensor : tensors) {
    std::string text(DTypeName(tensor.dtype));
    for (const std::uint64_t dim : tensor.shape) text += " " + std::to_string(dim);
    text += ": ";
    text.append(reinterpret_cast<const char*>(tensor.data.get()), tensor.bytes);
    out[tensor.name] = text;
  }
  return out;
}

std::map<std::string, std::string> Read(const ForeignSource& source) {
  auto tensors = ReadForeign(source);
  EXPECT_TRUE(tensors.ok()) << tensors.status().ToString();
  return tensors.ok() ? Describe(*tensors) : std::map<std::string, std::string>();
}

std::vector<std::string> Lines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(ForeignFileTest, ReadsPaddlesFilePerVariable) {
  EXPECT_EQ(Read({.path = kGolden + "paddle_3.3/vars"}),
            Read({.path = kGolden + "paddle_3.3/expected_static.safetensors"}));
}

TEST(ForeignFileTest, ReadsPaddlesCombinedFileWithItsNames) {
  const std::string path = kGolden + "paddle_3.3/combined/params";
  const std::vector<std::string> names = Lines(kGolden + "paddle_3.3/combined/names.txt");
  EXPECT_EQ(Read({.path = path, .names = names}),
            Read({.path = kGolden + "paddle_3.3/expected_static.safetensors"}));
  const Status unnamed = ReadForeign({.path = path}).status();
  EXPECT_EQ(unnamed.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(unnamed.message()), HasSubstr("holds 9 tensors"));
}

TEST(ForeignFileTest, ReadsPaddlesPickles) {
  const auto expected = Read({.path = kGolden + "paddle_3.3/expected_pdparams.safetensors"});
  EXPECT_EQ(Read({.path = kGolden + "paddle_3.3/model.pdparams"}), expected);
  EXPECT_EQ(Read({.path = kGolden + "paddle_3.3/protocol2.pdparams"}), expected);
  EXPECT_EQ(Read({.path = kGolden + "paddle_3.3/model.pdopt"}),
            Read({.path = kGolden + "paddle_3.3/expected_pdopt.safetensors"}));
}

TEST(ForeignFileTest, ReadsTorch) {
  EXPECT_EQ(Read({.path = kGolden + "torch_2/model.pt"}),
            Read({.path = kGolden + "torch_2/expected.safetensors"}));
}

TEST(ForeignFileTest, ReadsTheInitializersOfOnnx) {
  const auto expected = Read({.path = kGolden + "onnx_1/expected.safetensors"});
  EXPECT_EQ(Read({.path = kGolden + "onnx_1/inline.onnx"}), expected);
  EXPECT_EQ(Read({.path = kGolden + "onnx_1/external.onnx"}), expected);
}

TEST(ForeignFileTest, ExternalDataOutsideOfTheModelsDirectoryIsRefused) {
  TempDirectory directory;
  std::string model = ReadFile(kGolden + "onnx_1/external.onnx");
  const std::size_t at = model.find("external.data");
  ASSERT_NE(at, model.npos);
  model.replace(at, 13, "../../../etc/");
  WriteFile(directory / "model.onnx", model);
  const Status refused = ReadForeign({.path = directory / "model.onnx"}).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused.ToString();
}

TEST(ForeignFileTest, ExternalDataIsNotReadThroughALinkThatLeadsOutside) {
  namespace fs = std::filesystem;
  TempDirectory directory;
  const auto read = [&] { return ReadForeign({.path = directory / "model/external.onnx"}); };
  fs::create_directory(directory / "model");
  fs::copy(kGolden + "onnx_1/external.onnx", directory / "model");
  fs::copy(kGolden + "onnx_1/external.data", directory / "secret");
  fs::create_symlink("../secret", directory / "model/external.data");
  const Status refused = read().status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused.ToString();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("link"));

  // A link to a file of the same directory …
  fs::rename(directory / "secret", directory / "model/data");
  fs::remove(directory / "model/external.data");
  fs::create_symlink("data", directory / "model/external.data");
  EXPECT_TRUE(read().ok()) << read().status().ToString();

  // … and a cache whose files all lie elsewhere, the model's with them.
  fs::create_directory(directory / "blobs");
  fs::rename(directory / "model/external.onnx", directory / "blobs/1");
  fs::rename(directory / "model/data", directory / "blobs/2");
  fs::remove(directory / "model/external.data");
  fs::create_symlink("../blobs/1", directory / "model/external.onnx");
  fs::create_symlink("../blobs/2", directory / "model/external.data");
  EXPECT_TRUE(read().ok()) << read().status().ToString();
}

TEST(ForeignFileTest, APickleThatCallsSomethingIsRefusedByName) {
  TempDirectory directory;
  // cos\nsystem\n(S... : what pickle.dumps gives for an object whose __reduce__ is os.system.
  WriteFile(directory / "evil.pdparams",
            "\x80\x02}q\x00X\x01\x00\x00\x00wq\x01"
            "cposix\nsystem\nq\x02X\x04\x00\x00\x00trueq\x03\x85q\x04Rq\x05s."s);
  const Status refused = ReadForeign({.path = directory / "evil.pdparams"}).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("posix.system"));
}

TEST(ForeignFileTest, FilesThatAreCutAreDamagedOrShortNeverRead) {
  TempDirectory directory;
  for (const std::string name : {"paddle_3.3/model.pdparams", "paddle_3.3/vars/fc/w",
                                 "torch_2/model.pt", "onnx_1/inline.onnx"}) {
    const std::string whole = ReadFile(kGolden + name);
    const std::string path = directory / std::filesystem::path(name).filename().string();
    for (std::size_t bytes = 0; bytes < whole.size(); bytes += 7) {
      WriteFile(path, whole.substr(0, bytes));
      const auto read = ReadForeign({.path = path});
      // A model cut between two fields of the message is a shorter model; everything else is seen.
      if (name == "onnx_1/inline.onnx") continue;
      EXPECT_FALSE(read.ok()) << name << " cut to " << bytes;
    }
  }
}

TEST(ForeignFileTest, AnUnknownFileSaysWhatFormatsThereAre) {
  TempDirectory directory;
  WriteFile(directory / "mystery", "what is this");
  const Status status = ReadForeign({.path = directory / "mystery"}).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("pdparams"));
  EXPECT_EQ(ReadForeign({.path = directory / "nothing"}).status().code(), Code::kNotFound);
}

TEST(ForeignFileTest, AScopeIsLoadedFromForeignFiles) {
  Scope scope;
  ASSERT_TRUE(scope.Parameter("fc/w", DType::kF32, {3, 4}).ok());
  ASSERT_TRUE(scope.Parameter("hidden/bias", DType::kF32, {4}).ok());
  const LoadedVars loaded =
      LoadParams(kGolden + "paddle_3.3/vars", &scope, {.rename = {{"fc/b", "hidden/bias"}}})
          .value();
  EXPECT_THAT(loaded.names, ::testing::UnorderedElementsAre("fc/w", "hidden/bias"));
  EXPECT_EQ(scope.Initialize(1).code(), Code::kOk) << "no initializers: nothing to overwrite";
  MismatchReport mismatch;
  EXPECT_EQ(LoadPersistables(kGolden + "paddle_3.3/vars", &scope, {.mismatch = &mismatch})
                .status()
                .reason(),
            Reason::kMismatch);
  EXPECT_THAT(mismatch.missing, ::testing::ElementsAre("hidden/bias"));
  EXPECT_THAT(mismatch.unexpected, ::testing::Contains("learning_rate_0"));
}

}  // namespace
}  // namespace cairn
