/* Fibers: stacks that the threads of a block run on. One system thread runs them all. */
#ifndef STANDIN_FIBER_H
#define STANDIN_FIBER_H

#include <cstddef>

namespace standin
{

struct fiber;

/* A fiber that runs body(), which must never return. Its stack has a page below it that nothing may touch. */
fiber *fiber_create(void (*body)());
void fiber_switch(fiber *from, fiber *to);
fiber *fiber_of_host(); /* the program's own stack, for switching from and back to it */

} // namespace standin
#endif
