# Bytes of the KV cache as counted from its tensors and by the ledger, against the formula: on the diagonal they agree.
load 'plots/style.gp'

all = ''
low = 1e300; high = 0.0
note(x) = (low = smaller(low, x), high = bigger(high, x))
stats csv using (all = add_word(all, @row_key), note(num('kv_formula_bytes')), 0) nooutput

# Published byte counts of the lesson: B only (MB would be rounded), of Qwen2.5-1.5B in bf16, 28,672 bytes per token.
claims = lessons.'/claims.csv'
published_bytes(row_value) = strcol('lesson') eq 'kv-cache' && strcol('quantity') eq 'kv_bytes' && strcol('unit') eq 'B' \
    ? row_value : NaN
first(s) = strstrt(s, ';') ? s[1 : strstrt(s, ';') - 1] : s
params_context(s) = strstrt(s, 'context=') ? real(first(s[strstrt(s, 'context=') + 8 : *])) : NaN
stats claims using (note(published_bytes(num('published'))), 0) nooutput

label(tokens, tensors, bytes) = sprintf("%s tokens: %d tensors,\n%s bytes", commas(tokens), tensors, commas(bytes))

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 700)
    set title 'KV cache after a prefill, counted against predicted: '.heading(all)
    set xlabel 'formula, MiB'
    set ylabel 'measured, MiB'
    set logscale xy 2
    set xrange [low / MiB / 1.5 : high / MiB * 2.5]
    set yrange [low / MiB / 1.5 : high / MiB * 1.6]
    set key left top
    plot x with lines ls 1 title 'measured = formula', \
         csv using (num('kv_formula_bytes') / MiB):(num('kv_tensor_bytes') / MiB) with points ls 2 title 'tensors', \
         csv using (num('kv_formula_bytes') / MiB):(num('kv_ledger_bytes') / MiB) with points ls 3 title 'ledger', \
         claims using (published_bytes(28672.0 * params_context(strcol('params'))) / MiB):(num('published') / MiB) \
             with points ls 5 ps 2.6 title 'published: Qwen2.5-1.5B bf16, RTX 3060', \
         csv using (num('kv_formula_bytes') / MiB):(num('kv_tensor_bytes') / MiB): \
             (label(int(num('prompt_tokens')), int(num('n_tensors')), int(num('kv_tensor_bytes')))) \
             with labels left offset 1.5, -1 font font.',11' notitle
    unset output
}
