# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(PROJECT_VERSION_MAJOR GREATER 0)
  message(FATAL_ERROR "Version 1.0 promises compatibility: decide it in cmake/install.cmake (SameMajorVersion)")
endif()

set(package_directory "${CMAKE_INSTALL_DATADIR}/cmake/pipelining")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/pipe" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh")
target_include_directories(pipelining_core INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
install(TARGETS pipelining_core ${pipelining_host_wings} pipelining_pipelining EXPORT pipelining)
install(EXPORT pipelining NAMESPACE pipelining:: FILE pipeliningTargets.cmake DESTINATION "${package_directory}")
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/pipeliningConfig.cmake.in" "${PROJECT_BINARY_DIR}/pipeliningConfig.cmake"
  INSTALL_DESTINATION "${package_directory}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/pipeliningConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/pipeliningConfig.cmake" "${PROJECT_BINARY_DIR}/pipeliningConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindNCCL.cmake"
  DESTINATION "${package_directory}")
# For builds without CMake: pkg-config --cflags pipelining. Found from the place of the file, so a tree can be moved.
set(pkgconfig_directory "${CMAKE_INSTALL_DATADIR}/pkgconfig")
file(RELATIVE_PATH prefix_from_pkgconfig "/p/${pkgconfig_directory}" "/p")
string(REGEX REPLACE "/$" "" prefix_from_pkgconfig "${prefix_from_pkgconfig}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/pipelining.pc.in" "${PROJECT_BINARY_DIR}/pipelining.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/pipelining.pc" DESTINATION "${pkgconfig_directory}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/licenses/pipelining")
