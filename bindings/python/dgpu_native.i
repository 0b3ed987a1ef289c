// The native module of the Python package. Python's classes are in dgpu/__init__.py; nothing here is public.
%module(package="dgpu", threads="1") lowlevel
%{
#include "dgpu_shim.h"

// Makes exceptions: called as factory(status, message, object, function, op, backend) with the GIL held.
static PyObject* g_error_factory = nullptr;

static void set_python_error(const dgpu_binding::Error& e) {
  if (!g_error_factory) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
    return;
  }
  PyObject* made = PyObject_CallFunction(g_error_factory, "isssss", e.status, e.what(), e.object.c_str(),
                                         e.function.c_str(), e.op.c_str(), e.backend.c_str());
  if (!made) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made)), made);
  Py_DECREF(made);
}
%}

%inline %{
static void set_error_factory(PyObject* factory) {
  SWIG_PYTHON_THREAD_BEGIN_BLOCK;
  Py_INCREF(factory);
  Py_XDECREF(g_error_factory);
  g_error_factory = factory;
  SWIG_PYTHON_THREAD_END_BLOCK;
}
%}

// The call runs without the GIL; the guard object of SWIG takes it again before a handler runs.
%exception {
  try {
    $action
  } catch (const dgpu_binding::Error& e) {
    set_python_error(e);
    SWIG_fail;
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
    SWIG_fail;
  }
}

// Buffers: a contiguous view that is held for the length of the call, also while the GIL is released. Whoever submits
// an asynchronous copy keeps a memoryview of its own until the command has retired.
%typemap(arginit) dgpu_binding::ConstBytes, dgpu_binding::MutableBytes "view$argnum.obj = nullptr;"
%typemap(in) dgpu_binding::ConstBytes (Py_buffer view) {
  if (PyObject_GetBuffer($input, &view, PyBUF_C_CONTIGUOUS) != 0) SWIG_fail;
  $1.data = view.buf;
  $1.size = static_cast<size_t>(view.len);
}
%typemap(in) dgpu_binding::MutableBytes (Py_buffer view) {
  if (PyObject_GetBuffer($input, &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0) SWIG_fail;
  $1.data = view.buf;
  $1.size = static_cast<size_t>(view.len);
}
%typemap(freearg) dgpu_binding::ConstBytes, dgpu_binding::MutableBytes "if (view$argnum.obj) PyBuffer_Release(&view$argnum);"
%typemap(typecheck, precedence=SWIG_TYPECHECK_VOIDPTR) dgpu_binding::ConstBytes, dgpu_binding::MutableBytes
  "$1 = PyObject_CheckBuffer($input);"

%include "dgpu.i"
