# Warnings, sanitizers, ccache, and the function that makes one room of the house.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(dgpu_flags INTERFACE)
target_compile_options(dgpu_flags INTERFACE -Wall -Wextra -Werror -Wshadow -Wno-unused-parameter
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Wno-missing-field-initializers>)
target_include_directories(dgpu_flags INTERFACE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
if(DGPU_SANITIZE)
  add_link_options(-fsanitize=${DGPU_SANITIZE})  # every program, those without dgpu_flags, too
  target_compile_options(dgpu_flags INTERFACE -fsanitize=${DGPU_SANITIZE} -fno-omit-frame-pointer -g1
    -fno-sanitize-recover=all)
  target_link_options(dgpu_flags INTERFACE -fsanitize=${DGPU_SANITIZE})
endif()

# dgpu_room(NAME [LIBS...]): all sources below the current directory as one object library.
function(dgpu_room name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  add_library(dgpu_${name} OBJECT ${sources})
  target_link_libraries(dgpu_${name} PRIVATE dgpu_flags ${ARGN})
  set_property(GLOBAL APPEND PROPERTY DGPU_ROOMS dgpu_${name})
endfunction()
