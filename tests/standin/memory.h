/* What fault.cpp needs of memory.cpp, and the other way round. */
#ifndef STANDIN_MEMORY_H
#define STANDIN_MEMORY_H

#include <string>

namespace standin
{

void install_fault_handler();              /* if it is not there */
bool touch_on_fault(const void *address);  /* true: it was memory not touched before, and now may be */
bool device_is_open();                     /* between device_open() and device_close() */
std::string describe(const void *address); /* "byte 12 of an allocation of 8 bytes" */

} // namespace standin
#endif
