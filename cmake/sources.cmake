# Which file belongs to which library. What starts boxes, and the verbs of the command line, can only be shown with real
# boxes: no unit test and no fuzzer reaches them, and builds of these, with sanitizers, take half the time without.
#   pctx_engine  what unit tests and fuzzers reach, and everything below it
#   pctx_boxes   launch, pool and broker but for the files with a test beside them, and those that call these
#   pctx_cli     the files of cli with a test beside them; its other files belong to the program
function(pctx_split folders tested untested)
  set(with "")
  set(without "")
  foreach(folder IN LISTS folders)
    file(GLOB sources CONFIGURE_DEPENDS src/${folder}/*.cc)
    list(FILTER sources EXCLUDE REGEX "(_test|launch/init|cli/main)\\.cc$")
    foreach(source IN LISTS sources)
      string(REGEX REPLACE "\\.cc$" "_test.cc" test ${source})
      if(EXISTS ${test})
        list(APPEND with ${source})
      else()
        list(APPEND without ${source})
      endif()
    endforeach()
  endforeach()
  set(${tested} ${with} PARENT_SCOPE)
  set(${untested} ${without} PARENT_SCOPE)
endfunction()

file(GLOB PCTX_ENGINE_SOURCES CONFIGURE_DEPENDS src/base/*.cc src/sys/*.cc src/policy/*.cc src/plan/*.cc src/net/*.cc
     src/box/*.cc src/env/*.cc src/wire/*.cc src/backend/*.cc src/backend/*/*.cc)
list(FILTER PCTX_ENGINE_SOURCES EXCLUDE REGEX "_test\\.cc$")
pctx_split("launch;pool;broker" PCTX_TESTED PCTX_BOX_SOURCES)
# Named by the backends, of which there are tests.
set(PCTX_NAMED ${PROJECT_SOURCE_DIR}/src/launch/probe.cc ${PROJECT_SOURCE_DIR}/src/broker/address.cc)
list(REMOVE_ITEM PCTX_BOX_SOURCES ${PCTX_NAMED})
list(APPEND PCTX_ENGINE_SOURCES ${PCTX_TESTED} ${PCTX_NAMED})
# These start boxes. Where several files are compiled as one, whoever needs any of them would need these, too.
foreach(source box/box.cc box/head_start.cc env/build.cc)
  list(REMOVE_ITEM PCTX_ENGINE_SOURCES ${PROJECT_SOURCE_DIR}/src/${source})
  list(APPEND PCTX_BOX_SOURCES ${PROJECT_SOURCE_DIR}/src/${source})
endforeach()
pctx_split("cli" PCTX_CLI_SOURCES PCTX_VERB_SOURCES)
