# A model that does not fit: what was loaded when loading stopped, the request that was refused, and what else would have come;
# below, what each piece of advice would give back, against all that is missing.
load 'plots/style.gp'

GB = 1e9
all = ''; count = 0; widest = 0.0; missing = 0.0
stats csv using (all = add_word(all, @row_key), widest = bigger(widest, num('weights_formula_bytes')), \
    widest = bigger(widest, num('budget_bytes')), missing = num('missing_bytes'), count = count + 1, 0) nooutput
summary = results.'/'.name.'_summary.csv'
advices = count == 1 ? rows(summary) : 0
scale = widest < GB ? MB : GB
unit = widest < GB ? 'MB' : 'GB'

place(row) = count - row
loaded(unused) = num('ledger_bytes') / scale
refused(unused) = loaded(0) + num('requested_bytes') / scale
whole(unused) = num('weights_formula_bytes') / scale
budget(unused) = num('budget_bytes') / scale
told(unused) = num('missing_bytes') > 0 \
    ? sprintf('stops at %.1f %%; %.2f %s missing', num('weights_loaded_percent'), num('missing_bytes') / scale, unit) \
    : 'all weights fit'

advice_place(row) = advices - row
saved(unused) = num('saves_bytes') / scale
farthest = missing
if (advices) { stats summary using (farthest = bigger(farthest, num('saves_bytes')), 0) nooutput }

top = advices ? 0.40 : 1.0
do for [format in 'png svg'] {
    eval open_picture(format, 1000, advices ? 760 : 360)
    set multiplot
    set lmargin 27; set rmargin 4
    set grid noytics
    unset ytics
    set ytics scale 0

    set origin 0, 1 - top; set size 1, top
    set title 'Loading weights under a budget: '.heading(all)
    set xlabel unit.' (10^'.(scale < GB ? '6' : '9').' bytes)'
    set xrange [0 : widest / scale * 1.06]
    set yrange [0.3 : count + 1.0]
    set key above center horizontal samplen 2.5 width 1 font font.',12'
    plot csv using (0):(place($0)):(0):(whole(0)):(place($0) - 0.28):(place($0) + 0.28) with boxxyerror lc rgb grey lw 1.5 \
             fs empty title 'not reached', \
         csv using (0):(place($0)):(loaded(0)):(refused(0)):(place($0) - 0.28):(place($0) + 0.28) with boxxyerror \
             lc rgb orange lw 1.5 fs pattern 4 border lc rgb orange title 'refused request', \
         csv using (0):(place($0)):(0):(loaded(0)):(place($0) - 0.28):(place($0) + 0.28):ytic(strcol('model')) with boxxyerror \
             lc rgb blue lw 1.5 fs solid 0.6 border lc rgb blue title 'loaded', \
         csv using (num('predicted_loaded_percent') / 100 * whole(0)):(place($0)) with points ls 3 ps 2.2 title 'predicted', \
         csv using (budget(0)):(place($0)):(0.42) with yerrorbars lc rgb black lw 2.5 pt 0 ps 0 title 'budget', \
         csv using (whole(0) * 0.01):(place($0) + 0.43):(told(0)) with labels left font font.',12' notitle

    if (advices) {
        set origin 0, 0; set size 1, 1 - top
        set title 'What advice would give back, against all that is missing'
        set xlabel unit
        set xrange [0 : farthest / scale * 1.2]
        set yrange [0.3 : advices + 0.7]
        unset key
        set arrow 1 from missing / scale, graph 0 to missing / scale, graph 1 nohead lc rgb black lw 2.5
        set label 1 sprintf(' missing: %.2f %s', missing / scale, unit) at missing / scale, advices left font font.',12'
        plot summary using (0):(advice_place($0)):(0):(saved(0)):(advice_place($0) - 0.3):(advice_place($0) + 0.3): \
                 ytic(strcol('advice')) with boxxyerror lc rgb green lw 1.5 fs pattern 5 border lc rgb green, \
             summary using (saved(0) + farthest / scale * 0.01):(advice_place($0)):(strcol('helps')) with labels left font font.',12'
    }
    unset multiplot
    unset arrow
    unset label
    unset output
}
