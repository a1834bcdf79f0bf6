# Third-party libraries, found once and exposed under one naming scheme: cairn_dep::<name>.
#
#   cairn_find_runtime_dependencies()  uring xxhash isal zstd fmt spdlog json simdjson curl crypto ssl http_parser threads: what libcairn.a
#                                      links.
#                                      The installed package config includes this same file, so a user's
#                                      find_package(cairn) finds exactly what the build found.
#   cairn_find_dependency_onnx()       onnx, for the library cairn::predict; CAIRN_ONNX_FOUND says whether it is there. The
#                                      installed package calls it for find_package(cairn COMPONENTS predict).
#   cairn_find_dependency_grpc()       grpc, for the library cairn::ps; CAIRN_GRPC_FOUND. As with onnx.
#   cairn_find_dependency_master()     soci, yaml, archive, sodium: for the catalog and the master; CAIRN_MASTER_FOUND. Only for our own tree.
#   cairn_find_dependency_openvino()   openvino, for the plugin that runs models; CAIRN_OPENVINO_FOUND.
#   cairn_find_build_dependencies()    cli11, and headers that only the build wants. Only for our own tree.
#   cairn_find_dependency_gtest() _benchmark()   gtest gtest_main gmock; benchmark. Only for our own tree.
#
# Some of Debian 12's packages ship a CMake config and some only a pkg-config file; the wrappers hide which.
include_guard(GLOBAL)

# Makes cairn_dep::<name> an alias-like interface over the real targets. GLOBAL, so that it may be made in any directory.
function(_cairn_dep name)
  if(NOT TARGET cairn_dep::${name})
    add_library(cairn_dep::${name} INTERFACE IMPORTED GLOBAL)
    target_link_libraries(cairn_dep::${name} INTERFACE ${ARGN})
  endif()
endfunction()

macro(_cairn_stop_when_missing)
  if(cairn_missing_packages)
    list(REMOVE_DUPLICATES cairn_missing_packages)
    list(JOIN cairn_missing_packages " " cairn_missing_packages)
    # Indented lines are not wrapped.
    message(FATAL_ERROR "libraries that Cairn needs are missing. In its checkout this installs all of them (as root; otherwise it "
                        "prints the command):\n  scripts/setup build\nOn Debian 12 these packages have what is missing:\n"
                        "  apt-get install ${cairn_missing_packages}")
  endif()
endmacro()

# Each takes the Debian package that has it, last: those that are missing are named all at once, with the command.
macro(_cairn_pkg name module package)
  pkg_check_modules(cairn_pkg_${name} QUIET IMPORTED_TARGET GLOBAL ${module})
  if(cairn_pkg_${name}_FOUND)
    _cairn_dep(${name} PkgConfig::cairn_pkg_${name})
  else()
    list(APPEND cairn_missing_packages ${package})
  endif()
endmacro()

macro(_cairn_config name config version target package)
  find_package(${config} ${version} QUIET)
  if(${config}_FOUND)
    _cairn_dep(${name} ${target})
  else()
    list(APPEND cairn_missing_packages ${package})
  endif()
endmacro()

macro(cairn_find_runtime_dependencies)
  set(cairn_missing_packages "")
  find_package(Threads REQUIRED QUIET)
  _cairn_dep(threads Threads::Threads)
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    _cairn_pkg(uring "liburing>=2.3" liburing-dev)
    _cairn_pkg(xxhash "libxxhash>=0.8" libxxhash-dev)
    _cairn_pkg(isal "libisal>=2.30" libisal-dev)
    _cairn_pkg(zstd "libzstd>=1.5" libzstd-dev)
    _cairn_pkg(curl "libcurl>=7.85" libcurl4-openssl-dev)
    _cairn_pkg(crypto "libcrypto>=3.0" libssl-dev)
    _cairn_pkg(ssl "libssl>=3.0" libssl-dev)
  else()
    list(APPEND cairn_missing_packages pkg-config liburing-dev libxxhash-dev libisal-dev libzstd-dev libcurl4-openssl-dev libssl-dev)
  endif()
  _cairn_config(fmt fmt "" fmt::fmt libfmt-dev)
  _cairn_config(spdlog spdlog "" spdlog::spdlog libspdlog-dev)  # Debian builds it against the packaged fmt; its target says so.
  _cairn_config(json nlohmann_json 3.11 nlohmann_json::nlohmann_json nlohmann-json3-dev)
  _cairn_config(simdjson simdjson "" simdjson::simdjson libsimdjson-dev)
  find_library(CAIRN_HTTP_PARSER_LIBRARY http_parser)
  mark_as_advanced(CAIRN_HTTP_PARSER_LIBRARY)
  if(CAIRN_HTTP_PARSER_LIBRARY)
    _cairn_dep(http_parser ${CAIRN_HTTP_PARSER_LIBRARY})
  else()
    list(APPEND cairn_missing_packages libhttp-parser-dev)
  endif()
  _cairn_stop_when_missing()
endmacro()

# By hand: Debian's ONNXConfig.cmake names protobuf's target without looking for it.
macro(cairn_find_dependency_onnx)
  find_path(CAIRN_ONNX_INCLUDE onnx/onnx_pb.h)
  find_library(CAIRN_ONNX_LIBRARY onnx)
  find_library(CAIRN_ONNX_PROTO_LIBRARY onnx_proto)
  find_library(CAIRN_PROTOBUF_LIBRARY protobuf)
  mark_as_advanced(CAIRN_ONNX_INCLUDE CAIRN_ONNX_LIBRARY CAIRN_ONNX_PROTO_LIBRARY CAIRN_PROTOBUF_LIBRARY)
  set(CAIRN_ONNX_FOUND OFF)
  if(CAIRN_ONNX_INCLUDE AND CAIRN_ONNX_LIBRARY AND CAIRN_ONNX_PROTO_LIBRARY AND CAIRN_PROTOBUF_LIBRARY)
    set(CAIRN_ONNX_FOUND ON)
    _cairn_dep(onnx ${CAIRN_ONNX_LIBRARY} ${CAIRN_ONNX_PROTO_LIBRARY} ${CAIRN_PROTOBUF_LIBRARY})
    set_target_properties(cairn_dep::onnx PROPERTIES INTERFACE_COMPILE_DEFINITIONS "ONNX_ML=1;ONNX_NAMESPACE=onnx"
                                                     INTERFACE_INCLUDE_DIRECTORIES ${CAIRN_ONNX_INCLUDE})
  endif()
endmacro()

# By hand: Debian's gRPCConfig.cmake wants development files of everything that gRPC itself links.
macro(cairn_find_dependency_grpc)
  find_path(CAIRN_GRPC_INCLUDE grpcpp/grpcpp.h)
  find_library(CAIRN_GRPCPP_LIBRARY grpc++)
  find_library(CAIRN_GRPC_LIBRARY grpc)
  find_library(CAIRN_GPR_LIBRARY gpr)
  find_library(CAIRN_ABSL_LIBRARY absl_synchronization)  # gRPC's headers use its mutex
  mark_as_advanced(CAIRN_GRPC_INCLUDE CAIRN_GRPCPP_LIBRARY CAIRN_GRPC_LIBRARY CAIRN_GPR_LIBRARY CAIRN_ABSL_LIBRARY)
  set(CAIRN_GRPC_FOUND OFF)
  if(CAIRN_GRPC_INCLUDE AND CAIRN_GRPCPP_LIBRARY AND CAIRN_GRPC_LIBRARY AND CAIRN_GPR_LIBRARY AND CAIRN_ABSL_LIBRARY)
    set(CAIRN_GRPC_FOUND ON)
    _cairn_dep(grpc ${CAIRN_GRPCPP_LIBRARY} ${CAIRN_GRPC_LIBRARY} ${CAIRN_GPR_LIBRARY} ${CAIRN_ABSL_LIBRARY})
    set_target_properties(cairn_dep::grpc PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${CAIRN_GRPC_INCLUDE})
  endif()
endmacro()

# The catalog's databases, experiment files, code archives and passwords. SOCI's backends are linked, not found at run time.
macro(cairn_find_dependency_master)
  find_path(CAIRN_SOCI_INCLUDE soci/soci.h)
  find_library(CAIRN_SOCI_LIBRARY soci_core)
  find_library(CAIRN_SOCI_SQLITE_LIBRARY soci_sqlite3)
  find_library(CAIRN_SOCI_POSTGRES_LIBRARY soci_postgresql)
  mark_as_advanced(CAIRN_SOCI_INCLUDE CAIRN_SOCI_LIBRARY CAIRN_SOCI_SQLITE_LIBRARY CAIRN_SOCI_POSTGRES_LIBRARY)
  foreach(module sqlite3 libpq yaml-cpp libarchive libsodium)
    string(REPLACE "-" "_" cairn_module ${module})
    pkg_check_modules(cairn_pkg_${cairn_module} QUIET IMPORTED_TARGET GLOBAL ${module})
  endforeach()
  set(CAIRN_MASTER_FOUND OFF)
  if(CAIRN_SOCI_INCLUDE AND CAIRN_SOCI_LIBRARY AND CAIRN_SOCI_SQLITE_LIBRARY AND CAIRN_SOCI_POSTGRES_LIBRARY
     AND cairn_pkg_sqlite3_FOUND AND cairn_pkg_libpq_FOUND AND cairn_pkg_yaml_cpp_FOUND AND cairn_pkg_libarchive_FOUND
     AND cairn_pkg_libsodium_FOUND)
    set(CAIRN_MASTER_FOUND ON)
    _cairn_dep(soci ${CAIRN_SOCI_SQLITE_LIBRARY} ${CAIRN_SOCI_POSTGRES_LIBRARY} ${CAIRN_SOCI_LIBRARY}
               PkgConfig::cairn_pkg_sqlite3 PkgConfig::cairn_pkg_libpq)
    set_target_properties(cairn_dep::soci PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${CAIRN_SOCI_INCLUDE};${cairn_pkg_libpq_INCLUDEDIR}")
    _cairn_dep(yaml PkgConfig::cairn_pkg_yaml_cpp)
    _cairn_dep(archive PkgConfig::cairn_pkg_libarchive)
    _cairn_dep(sodium PkgConfig::cairn_pkg_libsodium)
  endif()
endmacro()

# OpenVINO's wheel brings headers and a CMake config; the interpreter that has it knows where.
macro(cairn_find_dependency_openvino)
  if(NOT OpenVINO_DIR AND Python_EXECUTABLE)
    execute_process(COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u;print(u.find_spec('openvino').submodule_search_locations[0])"
                    OUTPUT_VARIABLE cairn_openvino_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(cairn_openvino_folder)
      set(OpenVINO_DIR ${cairn_openvino_folder}/cmake CACHE PATH "OpenVINO's CMake config" FORCE)
    endif()
  endif()
  find_package(OpenVINO QUIET COMPONENTS Runtime)
  set(CAIRN_OPENVINO_FOUND ${OpenVINO_FOUND})
  if(CAIRN_OPENVINO_FOUND)
    _cairn_dep(openvino openvino::runtime)
  endif()
endmacro()

# Headers that libcairn.a is compiled with and whoever links it does not need, and those of the command line.
macro(cairn_find_build_dependencies)
  set(cairn_missing_packages "")
  _cairn_config(cli11 CLI11 "" CLI11::CLI11 libcli11-dev)
  find_path(CAIRN_RESTINIO_INCLUDE restinio/all.hpp)
  find_path(CAIRN_ASIO_INCLUDE asio.hpp)
  mark_as_advanced(CAIRN_RESTINIO_INCLUDE CAIRN_ASIO_INCLUDE)
  if(NOT CAIRN_RESTINIO_INCLUDE)
    list(APPEND cairn_missing_packages librestinio-dev)
  endif()
  if(NOT CAIRN_ASIO_INCLUDE)
    list(APPEND cairn_missing_packages libasio-dev)
  endif()
  _cairn_stop_when_missing()
endmacro()

macro(cairn_find_dependency_gtest)
  find_package(GTest REQUIRED QUIET)
  _cairn_dep(gtest GTest::gtest)
  _cairn_dep(gtest_main GTest::gtest_main)
  _cairn_dep(gmock GTest::gmock)
endmacro()
