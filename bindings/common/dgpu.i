// What every language wraps. The language's file comes first: it defines the exception handling and the typemaps of
// ConstBytes and MutableBytes, which must precede the classes.
%include <stdint.i>
%include <std_string.i>
%include <std_vector.i>

namespace std {
%template(U32Vector) vector<uint32_t>;
%template(U64Vector) vector<uint64_t>;
%template(I32Vector) vector<int32_t>;
%template(I64Vector) vector<int64_t>;
%template(DoubleVector) vector<double>;
%template(StringVector) vector<std::string>;
}

// Raw C structs and handles stay inside.
%ignore dgpu_binding::Error;
%ignore dgpu_binding::raise;
%ignore dgpu_binding::check;
%ignore dgpu_binding::ready;
%ignore dgpu_binding::text_of;
%ignore dgpu_binding::described;
%ignore dgpu_binding::dtype_of;
%ignore dgpu_binding::Device::get;
%ignore dgpu_binding::Context::get;
%ignore dgpu_binding::Stream::get;
%ignore dgpu_binding::Event::get;
%ignore dgpu_binding::Op::get;
%ignore dgpu_binding::Plan::get;
%ignore dgpu_binding::Kernel::get;
%ignore dgpu_binding::Model::get;
%ignore dgpu_binding::Session::get;
%ignore dgpu_binding::Sequence::get;
%ignore dgpu_binding::Device::info;
%ignore dgpu_binding::Plan::info;
%ignore dgpu_binding::Model::info;
%ignore dgpu_binding::ConstBytes;
%ignore dgpu_binding::MutableBytes;

%include "dgpu_shim.h"
