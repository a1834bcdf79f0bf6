# cmake --install: headers, libcairn.a, the package config, and the programs marked INSTALL.
include_guard(GLOBAL)
if(TARGET cairn_public)
  include(CMakePackageConfigHelpers)
  set(CAIRN_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/cairn)
  install(TARGETS cairn_public EXPORT cairnTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  # In a file of its own, which find_package(cairn COMPONENTS predict) reads: it names libonnx.
  if(TARGET cairn_public_predict)
    install(TARGETS cairn_public_predict EXPORT cairnPredictTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT cairnPredictTargets NAMESPACE cairn:: DESTINATION ${CAIRN_PACKAGE_DIR})
  endif()
  # Likewise: it names gRPC.
  if(TARGET cairn_public_ps)
    install(TARGETS cairn_public_ps EXPORT cairnPsTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT cairnPsTargets NAMESPACE cairn:: DESTINATION ${CAIRN_PACKAGE_DIR})
  endif()
  if(TARGET cairn_openvino)
    install(TARGETS cairn_openvino LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/cairn)
  endif()
  install(DIRECTORY include/cairn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
  install(EXPORT cairnTargets NAMESPACE cairn:: DESTINATION ${CAIRN_PACKAGE_DIR})
  configure_package_config_file(cmake/cairnConfig.cmake.in ${PROJECT_BINARY_DIR}/cairnConfig.cmake
                                INSTALL_DESTINATION ${CAIRN_PACKAGE_DIR})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/cairnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/cairnConfig.cmake ${PROJECT_BINARY_DIR}/cairnConfigVersion.cmake
          DESTINATION ${CAIRN_PACKAGE_DIR})
  install(FILES cmake/dependencies.cmake DESTINATION ${CAIRN_PACKAGE_DIR} RENAME cairnDependencies.cmake)
  if(CAIRN_MASTER_FOUND)
    install(FILES packaging/cairn-master.service DESTINATION lib/systemd/system)
    # Built by scripts/web. Without it the master has no page; the rest of it is the same.
    install(DIRECTORY web/dist/ DESTINATION ${CMAKE_INSTALL_DATADIR}/cairn/web OPTIONAL)
  endif()
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()
