/* The init program, carried inside the engine: nothing to install, nothing to find at run time. */
    .section .rodata
    .global pctx_init_begin
    .global pctx_init_end
    .balign 16
pctx_init_begin:
    .incbin PCTX_INIT_FILE
pctx_init_end:
    .section .note.GNU-stack,"",@progbits
