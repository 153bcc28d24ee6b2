# pctx_sandbox._native: the decoder of what guests return, as one extension module for every CPython from 3.10 on.
# Left out where Python's headers are missing; the wheel's build asks for them with PCTX_PYTHON=REQUIRED.
if(PCTX_PYTHON STREQUAL "OFF")
  return()
endif()
if(NOT Python3_FOUND)
  message(STATUS "Python's headers are missing (python3-dev): the extension module is left out")
  return()
endif()

file(GLOB PCTX_NATIVE_SOURCES CONFIGURE_DEPENDS src/data/*.cc)
list(FILTER PCTX_NATIVE_SOURCES EXCLUDE REGEX "_test\\.cc$")
add_library(pctx_native MODULE ${PCTX_NATIVE_SOURCES})
set_target_properties(pctx_native PROPERTIES PREFIX "" OUTPUT_NAME "_native" SUFFIX ".abi3.so"
                                             CXX_VISIBILITY_PRESET hidden
                                             LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python/pctx_sandbox)
target_compile_definitions(pctx_native PRIVATE Py_LIMITED_API=0x030A0000)
target_include_directories(pctx_native PRIVATE src)
target_include_directories(pctx_native SYSTEM PRIVATE ${Python3_INCLUDE_DIRS})
target_link_libraries(pctx_native PRIVATE pctx_flags)
# Nothing of the build machine's C++ runtime may be needed where the wheel is installed, nor what that runtime itself asks
# of the C library (its unwinder: glibc 2.35); src/data does without it, and tests/style looks at the result.
target_compile_options(pctx_native PRIVATE -fno-exceptions)
if(NOT PCTX_SANITIZE)
  target_link_options(pctx_native PRIVATE -static-libstdc++ -static-libgcc -Wl,-z,relro,-z,now)
endif()

# What the Zygote forks with; plain C, loaded with ctypes, so that it serves every Python.
add_library(pctx_fork MODULE python/pctx_sandbox/guest/fork.c)
set_target_properties(pctx_fork PROPERTIES PREFIX "" OUTPUT_NAME "_fork" SUFFIX ".so" C_VISIBILITY_PRESET hidden
                                           LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python/pctx_sandbox/guest)
target_compile_options(pctx_fork PRIVATE -O2 -Wall -Wextra $<$<BOOL:${PCTX_WERROR}>:-Werror>)
# The same for the Zygote of scripts, which imports nothing, not even ctypes; on the stable ABI.
add_library(pctx_scripts MODULE python/pctx_sandbox/guest/scripts.c python/pctx_sandbox/guest/fork.c)
# Each file for itself: Python.h of 3.10 defines _GNU_SOURCE, and so does fork.c.
set_target_properties(pctx_scripts PROPERTIES PREFIX "" OUTPUT_NAME "_scripts" SUFFIX ".so" C_VISIBILITY_PRESET hidden
                                              UNITY_BUILD OFF
                                              LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python/pctx_sandbox/guest)
target_compile_definitions(pctx_scripts PRIVATE Py_LIMITED_API=0x03080000)
target_include_directories(pctx_scripts SYSTEM PRIVATE ${Python3_INCLUDE_DIRS})
target_compile_options(pctx_scripts PRIVATE -O2 -Wall -Wextra $<$<BOOL:${PCTX_WERROR}>:-Werror>)
install(TARGETS pctx_scripts LIBRARY DESTINATION pctx_sandbox/guest COMPONENT python)
install(TARGETS pctx_fork LIBRARY DESTINATION pctx_sandbox/guest COMPONENT python)
install(TARGETS pctx_native LIBRARY DESTINATION pctx_sandbox COMPONENT python)
