# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The recipe for conan 2: `conan create .`"""
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import load


class Pipelining(ConanFile):
    name = "pipelining"
    description = "Header-only C++20 library for pipeline-parallel training schedules"
    license = "Apache-2.0 WITH LLVM-exception"
    topics = ("header-only", "machine-learning", "pipeline-parallelism")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    exports_sources = "CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "modules/*"
    no_copy_source = True

    def set_version(self):
        header = load(self, os.path.join(self.recipe_folder, "include", "pipe", "version.hpp"))
        self.version = ".".join(re.findall(r"^#define PIPELINING_VERSION_\w+ (\d+)$", header, re.MULTILINE))

    def validate(self):
        check_min_cppstd(self, 20)

    def package_id(self):
        self.info.clear()

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "EXAMPLES", "BENCHMARKS"):
            toolchain.cache_variables[f"PIPELINING_BUILD_{part}"] = False
        # An installed package looks for these where it is used, whatever the machine that made it had.
        for part in ("CUDA", "NCCL", "MPI"):
            toolchain.cache_variables[f"PIPELINING_ENABLE_{part}"] = "OFF"
        toolchain.generate()

    def build(self):
        CMake(self).configure()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # find_package finds the library's own file, with its components, not one that conan would write.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["share/cmake/pipelining"]
        self.cpp_info.set_property("pkg_config_name", "pipelining")
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        if self.settings.get_safe("os") == "Linux":
            self.cpp_info.system_libs = ["pthread"]
