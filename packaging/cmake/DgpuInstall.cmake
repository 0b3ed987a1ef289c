# What `cmake --install` puts where: library, headers, pkg-config and CMake packages, documents, man pages.
include(CMakePackageConfigHelpers)

install(TARGETS dgpu EXPORT dgpuTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT lib NAMELINK_COMPONENT dev)
install(FILES ${CMAKE_SOURCE_DIR}/include/dgpu.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/dgpu DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
  FILES_MATCHING PATTERN "*.h")

# Relocatable: the prefix follows from where dgpu.pc lies.
file(RELATIVE_PATH DGPU_PC_PREFIX "/x/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/x")
string(REGEX REPLACE "/$" "" DGPU_PC_PREFIX "${DGPU_PC_PREFIX}")
configure_file(${CMAKE_SOURCE_DIR}/packaging/cmake/dgpu.pc.in ${CMAKE_BINARY_DIR}/dgpu.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/dgpu.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dgpu)
install(EXPORT dgpuTargets NAMESPACE dgpu:: DESTINATION ${package_dir} COMPONENT dev)
configure_package_config_file(${CMAKE_SOURCE_DIR}/packaging/cmake/dgpuConfig.cmake.in
  ${CMAKE_BINARY_DIR}/dgpuConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/dgpuConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_BINARY_DIR}/dgpuConfig.cmake ${CMAKE_BINARY_DIR}/dgpuConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT dev)

install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR}
  COMPONENT lib)
# The headers refer to these; the template is what a vendor copies.
install(FILES ${CMAKE_SOURCE_DIR}/docs/operators.md ${CMAKE_SOURCE_DIR}/docs/errors.md ${CMAKE_SOURCE_DIR}/docs/templates.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT dev)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/src/backends/null/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/backend-template COMPONENT dev
  PATTERN CMakeLists.txt EXCLUDE)
# To read and to start from; the library has them built in.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/src/model/architectures DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT dev)
file(GLOB man_pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/packaging/man/*.1)
install(FILES ${man_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
