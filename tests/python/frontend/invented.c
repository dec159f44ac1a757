/* Licensed under the Apache License, Version 2.0; see LICENSE. */
/* A compiled module whose objects keep a number that nothing shows: with and without __reduce__, as
 * a member, in a static variable. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

typedef struct {
  PyObject_HEAD long n;
} Counter;

static long shared;

static PyObject* bump(PyObject* self, PyObject* unused) {
  return PyLong_FromLong(++((Counter*)self)->n);
}
static PyObject* get(PyObject* self, PyObject* unused) {
  return PyLong_FromLong(((Counter*)self)->n);
}
static PyObject* property_get(PyObject* self, void* unused) {
  return PyLong_FromLong(((Counter*)self)->n);
}
static int property_set(PyObject* self, PyObject* value, void* unused) {
  ((Counter*)self)->n = PyLong_AsLong(value);
  return 0;
}
static PyObject* advance(PyObject* self, void* unused) { return bump(self, NULL); }
static PyObject* add(PyObject* self, PyObject* other) {
  ((Counter*)self)->n += PyLong_AsLong(other);
  return Py_NewRef(self);
}
static PyObject* reduce(PyObject* self, PyObject* unused) {
  return Py_BuildValue("O()l", Py_TYPE(self), ((Counter*)self)->n);
}
static PyObject* reduce_less(PyObject* self, PyObject* unused) {
  return Py_BuildValue("O()", Py_TYPE(self));
}
static PyObject* set_state(PyObject* self, PyObject* state) {
  ((Counter*)self)->n = PyLong_AsLong(state);
  Py_RETURN_NONE;
}
static PyObject* bump_shared(PyObject* self, PyObject* unused) { return PyLong_FromLong(++shared); }
static PyObject* get_shared(PyObject* self, PyObject* unused) { return PyLong_FromLong(shared); }

#define BASIC {"bump", bump, METH_NOARGS, ""}, {"get", get, METH_NOARGS, ""}
static PyMethodDef plain[] = {BASIC, {NULL}};
static PyMethodDef reduced[] = {BASIC,
                                {"__reduce__", reduce, METH_NOARGS, ""},
                                {"__setstate__", set_state, METH_O, ""},
                                {NULL}};
static PyMethodDef less[] = {BASIC, {"__reduce__", reduce_less, METH_NOARGS, ""}, {NULL}};
static PyMethodDef of_static[] = {
    {"bump", bump_shared, METH_NOARGS, ""}, {"get", get_shared, METH_NOARGS, ""}, {NULL}};
static PyMemberDef members[] = {{"n", T_LONG, offsetof(Counter, n), 0, ""}, {NULL}};
static PyGetSetDef getset[] = {
    {"n", property_get, property_set, "", NULL}, {"next", advance, NULL, "", NULL}, {NULL}};

#define SLOTS(name, ...) static PyType_Slot name[] = {__VA_ARGS__, {0, NULL}}
SLOTS(plain_slots, {Py_tp_methods, plain});
SLOTS(reduced_slots, {Py_tp_methods, reduced});
SLOTS(less_slots, {Py_tp_methods, less});
SLOTS(member_slots, {Py_tp_methods, plain}, {Py_tp_members, members});
SLOTS(getset_slots, {Py_tp_methods, plain}, {Py_tp_getset, getset});
SLOTS(adding_slots, {Py_tp_methods, plain}, {Py_nb_inplace_add, add});
SLOTS(static_slots, {Py_tp_methods, of_static});

#define SPEC(name, slots, size) \
  {"invented." name, size, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots}
static PyType_Spec specs[] = {
    SPEC("Plain", plain_slots, sizeof(Counter)),
    SPEC("Reduced", reduced_slots, sizeof(Counter)),
    SPEC("Less", less_slots, sizeof(Counter)),
    SPEC("Member", member_slots, sizeof(Counter)),
    SPEC("GetSet", getset_slots, sizeof(Counter)),
    SPEC("Adding", adding_slots, sizeof(Counter)),
    SPEC("OfStatic", static_slots, sizeof(PyObject)),
};

static PyMethodDef functions[] = {
    {"bump", bump_shared, METH_NOARGS, ""}, {"get", get_shared, METH_NOARGS, ""}, {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "invented", NULL, -1, functions};

PyMODINIT_FUNC PyInit_invented(void) {
  shared = 0;
  PyObject* made = PyModule_Create(&module);
  for (size_t i = 0; made && i < sizeof(specs) / sizeof(specs[0]); i++) {
    PyObject* type = PyType_FromSpec(&specs[i]);
    if (!type || PyModule_AddType(made, (PyTypeObject*)type) < 0) return NULL;
  }
  return made;
}
