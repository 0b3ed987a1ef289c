#include <algorithm>
#include <filesystem>

#include "base/config.h"
#include "model/template.h"

namespace dgpu::model {

using T = JsonNode::Type;
namespace fs = std::filesystem;

const TemplateFile* TemplateSet::find(std::string_view name) const {
  for (const TemplateFile& f : files_)
    if (f.name == name) return &f;
  return nullptr;
}

Status TemplateSet::add(std::string name, std::string file, JsonNode json) {
  if (json.is(T::Object) && !json.find("template")) return DGPU_STATUS_SUCCESS;  // some other JSON file
  const JsonNode* version = json.find("template");
  if (!version || !version->is(T::Int) || version->integer != 1)
    return fail(DGPU_STATUS_PARSE_ERROR, file, "{}: expected an object with \"template\": 1", file);
  if (const JsonNode* own = json.find("name")) {
    if (!own->is(T::String) || own->string.empty())
      return fail(DGPU_STATUS_PARSE_ERROR, file, "{}:{}: name must be a string", file, own->line);
    name = own->string;
  }
  if (name.size() > 63)
    return fail(DGPU_STATUS_PARSE_ERROR, file, "{}: a template name has at most 63 characters", file);
  if (!find(name)) files_.push_back({std::move(name), std::move(file), std::move(json)});
  return DGPU_STATUS_SUCCESS;
}

Status TemplateSet::add_directory(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".json") paths.push_back(it->path());
  if (error)
    return fail(DGPU_STATUS_NOT_FOUND, directory, "template directory {}: {}; correct the template path", directory,
                error.message());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) {
    JsonNode json;
    DGPU_TRY(read_json(path.string(), json));
    DGPU_TRY(add(path.stem().string(), path.string(), std::move(json)));
  }
  return DGPU_STATUS_SUCCESS;
}

Status TemplateSet::load(std::string_view paths) {
  files_.clear();
  for (size_t at = 0; at <= paths.size();) {
    const size_t colon = std::min(paths.find(':', at), paths.size());
    if (colon > at) DGPU_TRY(add_directory(std::string(paths.substr(at, colon - at))));
    at = colon + 1;
  }
  for (const auto& directory : config_paths("DGPU_TEMPLATE_PATH")) DGPU_TRY(add_directory(directory));
  for (const BuiltinTemplate& b : builtin_templates()) {
    JsonNode json;
    const std::string file = fmt::format("built-in {}.json", b.name);
    DGPU_TRY(parse_json(b.text, file, json));
    DGPU_TRY(add(b.name, file, std::move(json)));
  }
  return DGPU_STATUS_SUCCESS;
}

// ---- Which template ------------------------------------------------------------------------------------------------

static bool lists(const TemplateFile& f, const char* what, const std::string& wanted) {
  const JsonNode* match = f.json.find("match");
  const JsonNode* names = match ? match->find(what) : nullptr;
  if (!names) return false;
  return std::any_of(names->items.begin(), names->items.end(), [&](const JsonNode& n) { return n.string == wanted; });
}

static const TemplateFile* first_with(const std::vector<TemplateFile>& files, const char* what,
                                      const std::string& wanted) {
  for (const TemplateFile& f : files)
    if (lists(f, what, wanted)) return &f;
  return nullptr;
}

static std::string known(const std::vector<TemplateFile>& files) {
  std::string out;
  for (const TemplateFile& f : files)
    if (f.json.find("match")) out += " " + f.name;
  return out;
}

Status TemplateSet::match(const JsonNode& config, std::string_view file, const TemplateFile*& out) const {
  const JsonNode *type = config.find("model_type"), *architectures = config.find("architectures");
  if (type && !type->is(T::String))
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "model_type", "{}: key model_type: expected a string, got {}", file,
                brief(*type));
  if (architectures &&
      (!architectures->is(T::Array) || architectures->items.size() != 1 || !architectures->items[0].is(T::String)))
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "architectures",
                "{}: key architectures: expected a list of one string, got {}", file, brief(*architectures));
  if (!type && !architectures)
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "model_type",
                "{}: neither model_type nor architectures: cannot tell the family", file);
  const TemplateFile* by_type = type ? first_with(files_, "model_type", type->string) : nullptr;
  const TemplateFile* by_name =
      architectures ? first_with(files_, "architectures", architectures->items[0].string) : nullptr;
  const std::string what = architectures ? architectures->items[0].string : type->string;
  out = by_name ? by_name : by_type;
  if (!out || (architectures && !by_name))
    return fail(
        DGPU_STATUS_UNSUPPORTED, architectures ? "architectures" : "model_type",
        "{}: no template for architecture {} (model_type {}); known families:{}. A family is added by one file in "
        "a directory named by --templates or DGPU_TEMPLATE_PATH: see docs/templates.md",
        file, what, type ? type->string : "not given", known(files_));
  if (type && by_type != out)
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "model_type",
                "{}: key model_type: {} contradicts architectures: {}, which is template {}", file, type->string, what,
                out->name);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::model
