# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# An overlay port that lives in the repository it builds: vcpkg install pipelining --overlay-ports=ports
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
set(VCPKG_BUILD_TYPE release) # headers only: nothing differs in a debug build

vcpkg_check_features(OUT_FEATURE_OPTIONS parts
  FEATURES
    cuda PIPELINING_ENABLE_CUDA
    mpi PIPELINING_ENABLE_MPI
    nccl PIPELINING_ENABLE_NCCL)

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DPIPELINING_BUILD_TESTS=OFF -DPIPELINING_BUILD_EXAMPLES=OFF ${parts})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME pipelining CONFIG_PATH share/cmake/pipelining)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/lib" "${CURRENT_PACKAGES_DIR}/share/licenses")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
