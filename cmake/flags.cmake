# One place for compiler and linker flags: pctx_flags for everything, pctx_program_flags for what ships.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
add_library(pctx_flags INTERFACE)
target_compile_options(pctx_flags INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow
                                            $<$<BOOL:${PCTX_WERROR}>:-Werror>
                                            -Wno-gnu-statement-expression -Wno-missing-field-initializers
                                            -fstack-protector-strong)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 takes an empty std::optional<std::string> for an uninitialised one (GCC bug 80635).
  target_compile_options(pctx_flags INTERFACE -Wno-maybe-uninitialized)
endif()
target_compile_definitions(pctx_flags INTERFACE $<$<NOT:$<CONFIG:Debug>>:_FORTIFY_SOURCE=2> _GNU_SOURCE)
if(PCTX_SANITIZE)
  # -g1: a report names functions and lines; variables would take a tenth of the build's time.
  target_compile_options(pctx_flags INTERFACE -fsanitize=${PCTX_SANITIZE} -fno-omit-frame-pointer
                                              -fno-sanitize-recover=all -g1)
  target_link_options(pctx_flags INTERFACE -fsanitize=${PCTX_SANITIZE})
endif()

add_library(pctx_program_flags INTERFACE)
if(PCTX_STATIC AND NOT PCTX_SANITIZE)
  # One page of code less is one fault less at every start: sections that nobody uses go, -O2 over -O3.
  target_link_options(pctx_program_flags INTERFACE -static -Wl,--gc-sections -Wl,-z,noseparate-code)
  target_compile_options(pctx_flags INTERFACE -ffunction-sections -fdata-sections)
endif()
