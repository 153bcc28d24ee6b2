# The box's pid 1, a few kilobytes without libc, built first and then carried inside the engine (init_image.S).
set(PCTX_INIT ${CMAKE_BINARY_DIR}/pctx-init)
add_custom_command(
  OUTPUT ${PCTX_INIT}
  COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -Os -Wall -Wextra -Werror -ffreestanding -nostdlib -static -fno-pie
          -fno-exceptions -fno-rtti -fno-stack-protector -fno-asynchronous-unwind-tables -Wl,--build-id=none
          -Wl,-z,noseparate-code -Wl,-z,noexecstack -s -o ${PCTX_INIT} ${PROJECT_SOURCE_DIR}/src/launch/init.cc
  DEPENDS ${PROJECT_SOURCE_DIR}/src/launch/init.cc
  VERBATIM)
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/launch/init_image.S PROPERTIES
  COMPILE_DEFINITIONS "PCTX_INIT_FILE=\"${PCTX_INIT}\"" OBJECT_DEPENDS ${PCTX_INIT})
add_library(pctx_init_image STATIC src/launch/init_image.S)
