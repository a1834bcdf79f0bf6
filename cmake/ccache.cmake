# Compiles through ccache when it is there. Paths below the tree are hashed relative to it, so that a second clone (a CI
# run, another work tree) hits what the first one compiled.
include_guard(GLOBAL)
find_program(CAIRN_CCACHE ccache)
if(CAIRN_CCACHE)
  foreach(language C CXX)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER OR CMAKE_${language}_COMPILER_LAUNCHER STREQUAL "ccache")
      set(CMAKE_${language}_COMPILER_LAUNCHER /usr/bin/env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
                                              ${CAIRN_CCACHE})
    endif()
  endforeach()
endif()
