# What may be forgotten: for every policy, at every budget and context, how much worse the text is predicted than with full
# attention; what is left of a fact planted at its start, and how often it is recalled; bytes.
load 'plots/style.gp'

all = ''; groups = ''; worst = 0.0; best = 0.0; scored = 0; asked = 0; recalled = 0; most = 0.0; trained = ''
position(p) = p eq 'window only' ? 1 : p eq 'sinks + window' ? 2 : p eq 'heavy hitters' ? 3 : p eq 'persistence of importance' ? 4 : NaN
evicts(unused) = known(position(strcol('policy')))
group(unused) = sprintf('%s|%s|', strcol('budget_tokens'), strcol('context')).@row_key
budget_of(g) = g[1 : strstrt(g, '|') - 1]
rest_of(g) = g[strstrt(g, '|') + 1 : *]
context_of(g) = rest_of(g)[1 : strstrt(rest_of(g), '|') - 1]
series_of(g) = rest_of(g)[strstrt(rest_of(g), '|') + 1 : *]
stats csv using (all = add_word(all, @row_key), groups = evicts(0) ? add_word(groups, group(0)) : groups, \
    worst = bigger(worst, num('perplexity_delta_percent')), best = smaller(best, num('perplexity_delta_percent')), \
    scored = scored + known(num('perplexity')), asked = asked + known(num('probe_kept_percent')), \
    recalled = recalled + (evicts(0) && known(num('recall_percent'))), most = bigger(most, num('kv_bytes')), 0) nooutput
count = words(groups)
pick(i, value) = evicts(0) && group(0) eq word(groups, i) ? position(strcol('policy')) + (i - (count + 1) / 2.0) * 0.6 / count : NaN
label(g) = (words(all) > 1 ? series_of(g).', ' : '').commas(int(budget_of(g))).' slots, '.commas(int(context_of(g))).' tokens'
at(i, column_name) = pick(i, 0) == pick(i, 0) ? num(column_name) : NaN

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 1000)
    set multiplot
    set lmargin 11; set rmargin 3
    set xrange [0.5 : 4.5]
    set xtics ('' 1, '' 2, '' 3, '' 4)

    set origin 0, 0.56; set size 1, 0.44
    set title 'What may be forgotten: '.heading(all)
    set ylabel 'perplexity, % above full attention'
    span = worst - best > 0 ? worst - best : 1
    set yrange [best - 0.1 * span : worst + (0.25 + 0.08 * count) * span]
    if (!scored) { set label 1 'no perplexity: weights are synthetic' at graph 0.5, 0.5 center }
    set key left top
    plot 0 with lines ls 1 title 'full attention', \
         for [i = 1:count] csv using (pick(i, 1)):(given(scored, at(i, 'perplexity_delta_percent'))) \
             with points lc rgb colour(i) lw 2 pt point(i) ps 1.8 title label(word(groups, i))
    unset label

    set origin 0, 0.28; set size 1, 0.29
    unset title
    set ylabel 'fact at the start, %'
    set yrange [-5 : 145]
    set ytics 0, 25, 100
    set key left top maxrows 2
    if (!asked) { set label 1 'no probe: see the notes of the run' at graph 0.5, 0.5 center }
    plot NaN with points lc rgb black pt 5 ps 1.2 title 'filled: slots of its digits still there', \
         NaN with points lc rgb black pt 4 ps 2.2 title recalled ? 'open: recalled' : 'recalled: with full attention neither', \
         for [i = 1:count] csv using (pick(i, 1)):(given(asked, at(i, 'probe_kept_percent'))) \
             with points lc rgb colour(i) lw 2 pt point(i) ps 1.2 notitle, \
         for [i = 1:count] csv using (pick(i, 1)):(given(recalled, at(i, 'recall_percent'))) \
             with points lc rgb colour(i) lw 2 pt point(i) - 1 ps 2.4 notitle
    unset label

    set origin 0, 0; set size 1, 0.30
    set ylabel 'KV cache, MiB'
    set yrange [0 : most / MiB * 1.35]
    set ytics autofreq
    set xtics ('window only' 1, 'sinks + window' 2, 'heavy hitters' 3, 'persistence of importance' 4)
    set key left top maxrows 1
    plot csv using (2.5):(evicts(0) ? NaN : num('kv_bytes') / MiB):(2.0) with xerrorbars lc rgb grey lw 2.5 pt 0 \
             title 'full attention (ledger), each context', \
         for [i = 1:count] csv using (pick(i, 1)):(at(i, 'kv_bytes') / MiB) \
             with points lc rgb colour(i) lw 2 pt point(i) ps 1.4 title i == 1 ? 'ledger' : ''
    unset multiplot
    unset output
}
