# Writes a C++ source with the text of every architecture template: cmake -DOUT=.. -DDIR=.. -P embed_templates.cmake
file(GLOB templates ${DIR}/*.json)
list(SORT templates)
set(rows "")
foreach(path ${templates})
  get_filename_component(name ${path} NAME_WE)
  file(READ ${path} text)
  string(APPEND rows "      {\"${name}\", R\"dgputemplate(${text})dgputemplate\"},\n")
endforeach()
file(WRITE ${OUT} "// Generated from src/model/architectures.\n#include \"model/template.h\"\n
namespace dgpu::model {
const std::vector<BuiltinTemplate>& builtin_templates() {
  static const auto* list = new std::vector<BuiltinTemplate>{
${rows}  };
  return *list;
}
}  // namespace dgpu::model\n")
