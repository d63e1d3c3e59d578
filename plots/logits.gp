# What a forward pass leaves allocated: the KV cache, and on top of it the logits, of all positions or of the last.
load 'plots/style.gp'

# One bar per row, the rows of one context side by side: `places` lists their x.
all = ''; places = ''; latest = ''; place = 0.0; highest = 0.0
bytes(column_name) = num(column_name) / MiB
setting(unused) = strcol('context').' '.@row_key
advance(s) = (place = place + (latest eq s ? 1.0 : latest eq '' ? 1.0 : 1.5), latest = s, place)
stats csv using (all = add_word(all, @row_key), places = places.sprintf('%g ', advance(setting(0))), \
    highest = bigger(highest, bytes('kv_bytes') + bytes('logits_bytes')), 0) nooutput
at(row) = real(word(places, int(row) + 1))

# The lesson measured Qwen2.5-1.5B; its points stand only on that model's bars with logits of all positions.
published_csv = lessons.'/logits.csv'
published_mb = ''
stats published_csv using (published_mb = published_mb.strcol('context').' '.strcol('extra_mb').' ', 0) nooutput
find(context) = int(sum [i = 1:words(published_mb) / 2] (word(published_mb, 2 * i - 1) eq context ? 2 * i : 0))
same_model(unused) = strcol('model') eq 'qwen2.5-1.5b' && strcol('dtype') eq 'bf16' && strcol('logits_positions') eq 'all'
published(unused) = same_model(0) && find(strcol('context')) \
    ? real(word(published_mb, find(strcol('context')))) * MB / MiB : NaN
published_points = 0
stats csv using (published_points = published_points + known(published(0)), 0) nooutput

# Many bars need narrow labels.
crowded = rows(csv) > 12
tick(unused) = sprintf(crowded ? '%s %s' : "%s\n%s", strcol('logits_positions'), commas(int(num('context')))) \
    .(words(all) > 1 ? ' '.strcol('model') : '')
share(unused) = known(num('logits_share_percent')) && !(crowded && strcol('logits_positions') eq 'last') ? sprintf('%.1f %%', num('logits_share_percent')) : ''

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 700)
    set title 'What a forward pass leaves allocated: '.heading(all)
    set ylabel 'MiB'
    set xlabel 'logits of all positions or of the last; context, tokens (percent: share of the logits)' offset 0, -1
    if (crowded) { set xtics rotate by 60 right font font.',10'; set bmargin 11; set xlabel offset 0, 0 } \
    else { set bmargin 5.5 }
    set xrange [0.2 : bigger(place + 0.8, 5)]
    set yrange [0 : highest * 1.12]
    set grid noxtics
    set rmargin 3
    set boxwidth 0.8
    set key above center vertical maxrows 2
    plot csv using (at($0)):(bytes('kv_bytes') + bytes('logits_bytes')):xtic(tick(0)) with boxes lc rgb orange lw 1.5 \
             fs pattern 4 border lc rgb orange title 'logits', \
         csv using (at($0)):(bytes('kv_bytes')) with boxes lc rgb blue lw 1.5 fs solid 1 border lc rgb blue title 'KV cache', \
         csv using (at($0)):(bytes('extra_ledger_bytes')) with points ls 3 title 'ledger: all that the pass left allocated', \
         csv using (at($0)):(given(published_points, published(0))) with points ls 5 ps published_points ? 2.6 : 0 \
             lc rgb black title published_points ? 'published: Qwen2.5-1.5B bf16, RTX 3060' : '', \
         csv using (at($0)):(bytes('kv_bytes') + bytes('logits_bytes')):(share(0)) with labels font font.',11' \
             offset 0, 1 notitle
    unset output
}
